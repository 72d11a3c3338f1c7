#include "filter.h"

#include <algorithm>
#include <chrono>

namespace effects {

Filter::Counter &Filter::counter_of_many(uint32_t place) {
  std::lock_guard lock(mutex_);
  return more_[place];
}

bool Filter::is_within_limits(Counter &mine, uint64_t number, bool is_same) {
  const uint64_t shown = number - mine.skipped.load(std::memory_order_relaxed);
  return shown < first.load(std::memory_order_relaxed) && is_time(mine, number, is_same);
}

bool Filter::is_time(Counter &mine, uint64_t number, bool is_same) {
  const double least = min_seconds.load(std::memory_order_relaxed);
  if (least == 0) return true;
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::lock_guard lock(mutex_);
  if (is_same && number < decided_) return std::find(due_.begin(), due_.end(), number + 1) != due_.end();
  if (is_same) decided_ = number + 1;
  double &last = is_same ? last_ : mine.last;
  if (now - last < least) return false;
  last = now;
  if (is_same) due_[next_due_++ % due_.size()] = number + 1; // 0: none
  return true;
}

Filter::Counts Filter::counts() {
  std::lock_guard lock(mutex_);
  Counts all{0, 0};
  const auto add = [&](const Counter &counter) {
    // The skipped ones first: each has come.
    const uint64_t skipped = counter.skipped.load(std::memory_order_relaxed);
    const uint64_t come = counter.come.load(std::memory_order_relaxed);
    if (is_same_.load(std::memory_order_relaxed))
      all = {std::max(all.come, come), std::max(all.shown, come - skipped)};
    else
      all = {all.come + come, all.shown + come - skipped};
  };
  for (const Counter &counter : few_) add(counter);
  for (const auto &[place, counter] : more_) add(counter);
  return all;
}

} // namespace effects
