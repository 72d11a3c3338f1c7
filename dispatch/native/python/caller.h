// A jitted function, as far as its calls are concerned.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "../wire.h"

namespace effects {

namespace nb = nanobind;

// All under Python's lock.
struct Caller {
  explicit Caller(std::string name, nb::object compile_lock = nb::none())
      : name(std::move(name)), compile_lock(std::move(compile_lock)) {}

  const std::string name;
  nb::object traits = nb::none(); // the `ProgramTraits` of the newest of its programs that has returned
  bool compiled = false;          // whether one of them is
  bool several = false;           // whether one of them is for several devices
  int compiling = 0;              // how many threads compile one of them
  const nb::object compile_lock;  // of several threads that come at one time, one compiles

  // Where the newest program ran that was called with arguments which name no device: the sharding of its output token,
  // a thread's tokens there (None: they are the host's), and which thread's these are.
  nb::object ran_on;
  nb::object pool = nb::none();
  uint32_t pool_of = kPlacedThread; // no thread's yet
};

inline bool Has(nb::handle traits, ProgramTrait trait) {
  return NB_TUPLE_GET_ITEM(traits.ptr(), static_cast<Py_ssize_t>(trait)) == Py_True;
}

// While one lives, a thread compiles a program of a caller's.
class Compiling {
public:
  explicit Compiling(Caller &caller) : caller_(caller) { ++caller_.compiling; }
  Compiling(const Compiling &) = delete;
  ~Compiling() { --caller_.compiling; }

private:
  Caller &caller_;
};

} // namespace effects
