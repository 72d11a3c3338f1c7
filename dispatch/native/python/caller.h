// The state of a jitted function that its calls need.
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
  nb::object traits = nb::none(); // the `ProgramTraits` of its newest returned program
  bool compiled = false;          // true if one of them is
  bool several = false;           // true if one of them is for several devices
  int compiling = 0;              // the number of threads that compile one
  const nb::object compile_lock;  // of concurrent threads, one compiles

  // The newest program called with arguments that name no device: the sharding of its output token, a thread's pool of
  // tokens there (None: tokens of the host), and that thread.
  nb::object ran_on;
  nb::object pool = nb::none();
  uint32_t pool_of = kPlacedThread; // no thread's yet
};

inline bool Has(nb::handle traits, ProgramTrait trait) {
  return NB_TUPLE_GET_ITEM(traits.ptr(), static_cast<Py_ssize_t>(trait)) == Py_True;
}

// Held while a thread compiles a program of a caller.
class Compiling {
public:
  explicit Compiling(Caller &caller) : caller_(caller) { ++caller_.compiling; }
  Compiling(const Compiling &) = delete;
  ~Compiling() { --caller_.compiling; }

private:
  Caller &caller_;
};

} // namespace effects
