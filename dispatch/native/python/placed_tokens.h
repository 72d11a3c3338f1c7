// Runtime tokens that lie on devices.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace effects {

namespace nb = nanobind;

// One program at a time has it.
struct PlacedToken {
  nb::object array;
  nb::object memory;       // an array of the host's, if the devices read the token there, else None
  uint32_t *epoch;         // where that has the epoch; null if there is none
  nb::object output_token; // of the program that has it
};

// Whether the user has deleted an array, who gets at every one through `jax.live_arrays()`.
bool IsDeleted(nb::handle array);

// Those on the devices of one sharding, or on one device. To put an array on devices takes longer than to call a small
// program. But devices that use the host's memory read a token where it lies: once a program is over, its token is
// written anew for another. All under Python's lock, which `make` and JAX's arrays may let go of for a while.
class Pool {
public:
  // `make(number)` makes one: (array, memory, the memory's address).
  explicit Pool(nb::object make) : make_(std::move(make)) {}

  // A token of this epoch.
  PlacedToken take(uint32_t number);
  // The program that had it is over.
  void give(PlacedToken placed);
  // It is when this is ready.
  void give_after(PlacedToken placed, nb::handle output_token);

private:
  static constexpr size_t kKept = 64;

  bool find_over();

  nb::object make_;
  std::vector<PlacedToken> free_;
  std::deque<PlacedToken> in_use_; // the oldest first
};

} // namespace effects
