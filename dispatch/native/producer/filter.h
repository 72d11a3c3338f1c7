// The filter of a line's effects. A publisher asks before it copies anything, and the host changes filters while
// programs run.
//
// Any thread may call everything here, and may be the last owner of a filter.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "../wire.h"

namespace effects {

// The fate of an effect that a device has reached.
enum class Decision {
  kShow,
  kLeaveOut,
  kElsewhere, // all devices have it, and another device came first, decided and published
};

// Python's filters share ownership of the native ones, so that no owner is a Python object. Otherwise:
//   1. The drain forgets a site with the mutex of Sites held, and so releases the Python object of its filter.
//   2. A thread with Python's lock registers a site, and waits for that mutex.
//   3. The drain waits for the Python lock.
class Filter : public std::enable_shared_from_this<Filter> {
public:
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  // For the host. Every effect is counted, shown or not. Shown are the first and each `every`-th; of these, the ones at
  // least `min_seconds` after the last shown one; and of these, the `first`.
  std::atomic<bool> on{true};
  std::atomic<bool> level_allows{true}; // by the current level of the line's logger
  std::atomic<uint64_t> every{1};
  std::atomic<uint64_t> first{kAll};
  std::atomic<double> min_seconds{0};

  // A device has reached an effect. In a region devices count separately; outside of regions there is one count for all
  // devices, that of `kAllDevices`. Inline: called for every record.
  bool shows(int32_t device) {
    Counter &counter = counter_of(device);
    if (has_limits()) return is_within_limits(counter);
    const uint64_t number = counter.come.fetch_add(1, std::memory_order_relaxed);
    if (is_on() && is_nth(number)) return true;
    counter.skipped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // A device has reached an ordered effect that all devices of its program have: the first device counts it and
  // decides.
  Decision shows_same(const Token &token);
  // The same for an unordered effect. The drain takes one device's records, so all devices must publish equally many:
  // the first device that reaches its n-th effect decides about the n-th of each. `devices`: the number that come.
  bool shows_copy(int32_t device, const Token &token, uint32_t devices);

  struct Counts {
    uint64_t come, shown;
  };
  // Over all devices.
  Counts counts();

private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> come{0}, skipped{0};
    double last = -std::numeric_limits<double>::infinity(); // the time of the last shown effect; guarded by mutex_
  };
  static constexpr size_t kFew = 8;
  static constexpr size_t kPrograms = 1024; // more than run at the same time

  Counter &counter_of(int32_t device) {
    if (device == kAllDevices) return common_;
    const auto place = static_cast<uint32_t>(PlaceOf(device));
    return place < kFew ? few_[place] : counter_of_many(place);
  }
  Counter &counter_of_many(uint32_t place);

  bool is_on() const { return on.load(std::memory_order_relaxed) && level_allows.load(std::memory_order_relaxed); }
  bool has_limits() const {
    return first.load(std::memory_order_relaxed) != kAll || min_seconds.load(std::memory_order_relaxed) != 0;
  }
  bool is_nth(uint64_t number) const {
    const uint64_t n = every.load(std::memory_order_relaxed);
    return n == 1 || number % n == 0; // a division is slow
  }
  bool is_within_limits(Counter &counter);

  // The decisions for the devices of a program.
  struct Program {
    bool is_known = false;
    uint64_t newest = 0; // the newest ordered effect's phase and index
    // For unordered effects, from number `begin` on: twice the number of devices still to come, plus 1 if it is shown.
    std::deque<uint32_t> copies;
    uint64_t begin = 0;
    std::map<int32_t, uint64_t> come; // by device: the number of effects reached
  };
  Program &program_of(const Token &token);

  std::array<Counter, kFew> few_;
  Counter common_;
  std::mutex mutex_;                 // guards `more_`, and each counter while there are limits
  std::map<uint32_t, Counter> more_; // by place
  std::mutex same_mutex_;            // guards all below; may be held while mutex_ is taken
  // By stream and epoch. A program's devices reach the effects of a line in one order. For a forgotten program a device
  // decides anew, and the drain drops the copy.
  std::map<uint64_t, Program> programs_;
  std::deque<uint64_t> in_order_; // their keys, the oldest first
};

} // namespace effects
