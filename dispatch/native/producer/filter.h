// Which of the effects of a line are shown. What publishes asks before it copies anything, and the host changes the
// filter while programs run.
//
// Any thread may call everything here, and may be the last that lets go of a filter.
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

// What becomes of an effect to which a device has come.
enum class Decision {
  kShow,
  kLeaveOut,
  kElsewhere, // all devices have it, and another one, which came first, has decided and done what follows
};

// Python's filters share what native code has, so that no owner of one is a Python object. Otherwise:
//   1. The drain forgets a site with the mutex of Sites held, and so lets go of the Python object of its filter.
//   2. A thread that has the Python lock registers a site, and waits for that mutex.
//   3. The drain waits for the Python lock.
class Filter : public std::enable_shared_from_this<Filter> {
public:
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  // The host's. What comes is counted, shown or not: the first and each `every`-th is shown, of these not sooner than
  // `min_seconds` after the one before, and of these the `first`.
  std::atomic<bool> on{true};
  std::atomic<bool> level_allows{true}; // as the level of the line's logger is now
  std::atomic<uint64_t> every{1};
  std::atomic<uint64_t> first{kAll};
  std::atomic<double> min_seconds{0};

  // A device has come to an effect. In a region it counts for itself; of all that is outside of regions, on whatever
  // devices, there is one count, that of `kAllDevices`. Inline: every record comes by.
  bool shows(int32_t device) {
    Counter &counter = counter_of(device);
    if (has_limits()) return is_within_limits(counter);
    const uint64_t number = counter.come.fetch_add(1, std::memory_order_relaxed);
    if (is_on() && is_nth(number)) return true;
    counter.skipped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // A device has come to an ordered effect that all devices of its program have: the first one counts it and decides.
  Decision shows_same(const Token &token);
  // The same without an order. The drain takes the records of one of the devices, so that each publishes as many: the
  // first device that comes to its n-th effect decides what becomes of the n-th of each. `devices`: how many come.
  bool shows_copy(int32_t device, const Token &token, uint32_t devices);

  struct Counts {
    uint64_t come, shown;
  };
  // Of all devices together.
  Counts counts();

private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> come{0}, skipped{0};
    double last = -std::numeric_limits<double>::infinity(); // when something was shown; guarded by mutex_
  };
  static constexpr size_t kFew = 8;
  static constexpr size_t kPrograms = 1024; // more than run at a time

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
    return n == 1 || number % n == 0; // a division takes long
  }
  bool is_within_limits(Counter &counter);

  // What has been decided for the devices of a program.
  struct Program {
    bool is_known = false;
    uint64_t newest = 0; // phase and index of the newest ordered effect
    // Of unordered effects, from the number `begin` on: whether it is shown, and twice how many devices have yet to come.
    std::deque<uint32_t> copies;
    uint64_t begin = 0;
    std::map<int32_t, uint64_t> come; // how many a device has come to
  };
  Program &program_of(const Token &token);

  std::array<Counter, kFew> few_;
  Counter common_;
  std::mutex mutex_;                 // guards the next one, and each counter while there are limits
  std::map<uint32_t, Counter> more_; // by place
  std::mutex same_mutex_;            // guards all below; may be held while the other one is taken
  // By stream and epoch. A program's devices come to the effects of a line in one order. Of a program that is
  // forgotten a device decides anew, and the drain has the copy.
  std::map<uint64_t, Program> programs_;
  std::deque<uint64_t> in_order_; // their keys, the oldest first
};

} // namespace effects
