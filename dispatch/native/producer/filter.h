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

  // The host's. A device counts what it comes to, shown or not: of that it shows the first and each `every`-th, of
  // these not sooner than `min_seconds` after the one before, and of these the `first`.
  std::atomic<bool> on{true};
  std::atomic<bool> level_allows{true}; // as the level of the line's logger is now
  std::atomic<uint64_t> every{1};
  std::atomic<uint64_t> first{kAll};
  std::atomic<double> min_seconds{0};

  // A device has come to an effect of its own. Inline, as the next one: every record comes by.
  bool shows(int32_t device) {
    Counter &mine = counter(device, false);
    const uint64_t number = mine.come.fetch_add(1, std::memory_order_relaxed);
    if (is_open() || (is_on() && is_let_through(mine, number))) return true;
    mine.skipped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // A device has come to an ordered effect that all devices of its program have: they count it once.
  Decision shows_same(int32_t device, const Token &token) {
    if (!is_open()) return decide(device, token);
    counter(device, true).come.fetch_add(1, std::memory_order_relaxed); // the drain takes the record of one of them
    return Decision::kShow;
  }

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
  static constexpr size_t kPrograms = 64;

  Counter &counter(int32_t device, bool is_same) {
    const auto place = static_cast<uint32_t>(PlaceOf(device)); // of kAllDevices another than any device's
    return place < kFew ? few_[is_same][place] : counter_of_many(is_same, place);
  }
  Counter &counter_of_many(bool is_same, uint32_t place);

  bool is_on() const { return on.load(std::memory_order_relaxed) && level_allows.load(std::memory_order_relaxed); }
  bool has_limits() const {
    return first.load(std::memory_order_relaxed) != kAll || min_seconds.load(std::memory_order_relaxed) != 0;
  }
  // Whether it shows all.
  bool is_open() const { return is_on() && every.load(std::memory_order_relaxed) == 1 && !has_limits(); }
  bool is_let_through(Counter &counter, uint64_t number) {
    return number % every.load(std::memory_order_relaxed) == 0 && (!has_limits() || is_within_limits(counter, number));
  }
  bool is_within_limits(Counter &counter, uint64_t number);
  Decision decide(int32_t device, const Token &token);

  std::array<std::array<Counter, kFew>, 2> few_;    // those of a device's own effects, and of those that all have
  std::mutex mutex_;                                // guards all below, and each counter's `last`
  std::array<std::map<uint32_t, Counter>, 2> more_; // by place
  std::mutex same_mutex_;                           // guards all below
  Counter same_;                                    // of all devices
  // By stream and epoch: phase and index of the newest effect that has been decided. A program's devices come to the
  // effects of a line in one order. Of a program that is forgotten a device decides anew, and the drain has the copy.
  std::map<uint64_t, uint64_t> decided_;
};

} // namespace effects
