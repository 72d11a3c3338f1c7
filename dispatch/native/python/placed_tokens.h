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
  uint32_t cell;           // which says whose it is (producer/token_cells.h); 0: it is for one program alone
  uint32_t number;         // of the epoch of the program that has it
  nb::object output_token; // that program's, if it calls handlers of the user's, which may read the token until then
  bool is_late = false;    // the drain is done with the program, which is not known to have closed
};

// Whether the user has deleted an array, who gets at every one through `jax.live_arrays()`.
bool IsDeleted(nb::handle array);

// Those of a thread on the devices of one sharding, or on one device. To put an array on devices takes longer than to
// call a small program, so a token stays there: when its program is over, it is another's. All under Python's lock,
// which `make` and JAX's arrays may let go of for a while.
class Pool {
public:
  // `make(cell, number)` makes an array of a cell, or without one of an epoch.
  Pool(uint32_t thread, nb::object make) : thread_(thread), make_(std::move(make)) {}
  Pool(const Pool &) = delete;
  ~Pool();

  // A token of this epoch. `calls`: those of the thread that may not be over, by epoch.
  PlacedToken take(uint32_t number, nb::handle calls);
  // The program that had it is over, and nothing comes from it any more.
  void give(PlacedToken placed);
  // It will be. `output_token`: None if it calls no handlers of the user's.
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
