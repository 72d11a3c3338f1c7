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

// A token on devices, which one program at a time has.
struct PlacedToken {
  nb::object array;
  uint32_t cell;           // see producer/token_cells.h; 0: the token is for one program only
  uint32_t number;         // of the epoch of its program
  nb::object output_token; // its program's, if that calls user handlers: these may read the token until it is over
  bool is_late = false;    // the drain is done with a program that is not known to have closed
};

// True if an array was deleted: users can reach every array through `jax.live_arrays()`.
bool IsDeleted(nb::handle array);

// A thread's tokens on the devices of one sharding, or on one device. To place an array takes longer than to call a
// small program, so tokens stay there and are reused when their program is over. All under Python's lock, which `make`
// and JAX's arrays may release for a while.
class Pool {
public:
  // `make(cell, number)` places the token of a cell, or of an epoch if `cell` is 0.
  Pool(uint32_t thread, nb::object make) : thread_(thread), make_(std::move(make)) {}
  Pool(const Pool &) = delete;
  ~Pool();

  // A token for this epoch. `calls`: the thread's calls that may not be over, by epoch.
  PlacedToken take(uint32_t number, nb::handle calls);
  // The token's program is over, and publishes nothing any more.
  void give(PlacedToken placed);
  // The token's program will be over. `output_token`: None if it calls no user handlers.
  void give_later(PlacedToken placed, nb::handle output_token);

private:
  static constexpr size_t kKept = 256;

  void take_back(nb::handle calls);

  const uint32_t thread_;
  nb::object make_;
  std::vector<PlacedToken> free_;
  std::deque<PlacedToken> in_use_; // the oldest first
};

} // namespace effects
