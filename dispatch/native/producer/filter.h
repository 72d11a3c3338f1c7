// Which of the effects of a line are shown. What publishes asks before it copies anything, and the host changes the
// filter while programs run.
//
// Any thread may call everything here, and may be the last that lets go of a filter.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "../wire.h"

namespace effects {

// Python's filters share what native code has, so that no owner of one is a Python object. Otherwise:
//   1. The drain forgets a site with the mutex of Sites held, and so lets go of the Python object of its filter.
//   2. A thread that has the Python lock registers a site, and waits for that mutex.
//   3. The drain waits for the Python lock.
class Filter : public std::enable_shared_from_this<Filter> {
public:
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  // The host's. A device counts what it comes to, shown or not: of that it shows the first and each `every`-th, of
  // these not sooner than `min_seconds` after the one before, and of these the `first`.
  std::atomic<bool> on{true};
  std::atomic<bool> level_allows{true}; // as the level of the line's logger is now
  std::atomic<uint64_t> every{1};
  std::atomic<uint64_t> first{kAll};
  std::atomic<double> min_seconds{0};

  // A device has come to the line: whether the effect is shown. `is_same`: all devices of the program have the same
  // effect. Inline: every record comes by.
  bool shows(int32_t device, bool is_same) {
    Counter &mine = counter(device);
    const uint64_t number = mine.come.fetch_add(1, std::memory_order_relaxed);
    if (is_same && !is_same_.load(std::memory_order_relaxed)) is_same_.store(true, std::memory_order_relaxed);
    const bool is_off = !on.load(std::memory_order_relaxed) || !level_allows.load(std::memory_order_relaxed);
    const uint64_t each = every.load(std::memory_order_relaxed);
    if (!is_off && (each == 1 || number % each == 0) && (!has_limits() || is_within_limits(mine, number, is_same)))
      return true;
    mine.skipped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  struct Counts {
    uint64_t come, shown;
  };
  // Of all devices together; of what they have in common, of the one that has come furthest.
  Counts counts();

private:
  struct alignas(64) Counter {
    std::atomic<uint64_t> come{0}, skipped{0};
    double last = -std::numeric_limits<double>::infinity(); // when something was shown; guarded by mutex_
  };
  static constexpr size_t kFew = 8;

  Counter &counter(int32_t device) {
    const auto place = static_cast<uint32_t>(PlaceOf(device)); // of kAllDevices another than any device's
    return place < kFew ? few_[place] : counter_of_many(place);
  }
  Counter &counter_of_many(uint32_t place);
  bool has_limits() const {
    return first.load(std::memory_order_relaxed) != kAll || min_seconds.load(std::memory_order_relaxed) != 0;
  }
  bool is_within_limits(Counter &mine, uint64_t number, bool is_same);
  bool is_time(Counter &mine, uint64_t number, bool is_same);

  std::array<Counter, kFew> few_;
  std::atomic<bool> is_same_{false};
  std::mutex mutex_;                 // guards all below
  std::map<uint32_t, Counter> more_; // by place
  // Of devices with the same effects, the first that comes to one decides whether it is time, and the others agree by
  // their counts.
  uint64_t decided_ = 0;           // those with lesser numbers
  std::array<uint64_t, 32> due_{}; // of these the newest that were shown
  size_t next_due_ = 0;
  double last_ = -std::numeric_limits<double>::infinity();
};

} // namespace effects
