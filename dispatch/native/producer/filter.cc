#include "filter.h"

#include <algorithm>
#include <chrono>
#include <iterator>

namespace effects {

Filter::Counter &Filter::counter_of_many(bool is_same, uint32_t place) {
  std::lock_guard lock(mutex_);
  return more_[is_same][place];
}

bool Filter::is_within_limits(Counter &counter, uint64_t number) {
  // Two programs may run on one device: the other's thread may have left out effects of higher numbers meanwhile.
  const uint64_t skipped = counter.skipped.load(std::memory_order_relaxed);
  const uint64_t shown = number - std::min(number, skipped);
  if (shown >= first.load(std::memory_order_relaxed)) return false;
  const double least = min_seconds.load(std::memory_order_relaxed);
  if (least == 0) return true;
  const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::lock_guard lock(mutex_);
  if (now - counter.last < least) return false;
  counter.last = now;
  return true;
}

// Devices that run the same may have come to a line differently often before, and at different times. If each decided
// for itself, one would publish what another leaves out, and the drain would take what comes first. So the first device
// that comes to an effect decides, and the others do nothing: its record or its gap stands for all.
Decision Filter::decide(int32_t device, const Token &token) {
  Counter &mine = counter(device, true);
  std::lock_guard lock(same_mutex_);
  const uint64_t place = uint64_t{token.phase} << 32 | token.index;
  const auto [decided, is_new] = decided_.try_emplace(uint64_t{token.stream} << 32 | token.epoch, place);
  if (!is_new && place <= decided->second) return Decision::kElsewhere;
  decided->second = place;
  if (is_new && decided_.size() > kPrograms)
    decided_.erase(decided_.begin() == decided ? std::next(decided) : decided_.begin());
  // While the filter was open, each device counted by itself.
  const uint64_t number =
      std::max(same_.come.load(std::memory_order_relaxed), mine.come.load(std::memory_order_relaxed));
  same_.come.store(number + 1, std::memory_order_relaxed);
  mine.come.store(number + 1, std::memory_order_relaxed);
  if (is_on() && is_let_through(same_, number)) return Decision::kShow;
  same_.skipped.fetch_add(1, std::memory_order_relaxed);
  return Decision::kLeaveOut;
}

Filter::Counts Filter::counts() {
  std::scoped_lock lock(mutex_, same_mutex_);
  uint64_t come = 0, skipped = 0, same = same_.come.load(std::memory_order_relaxed);
  const auto add = [&](const Counter &counter) {
    skipped += counter.skipped.load(std::memory_order_relaxed); // first: each of them has come
    come += counter.come.load(std::memory_order_relaxed);
  };
  for (const Counter &counter : few_[0]) add(counter);
  for (const auto &[place, counter] : more_[0]) add(counter);
  for (const Counter &counter : few_[1]) same = std::max(same, counter.come.load(std::memory_order_relaxed));
  for (const auto &[place, counter] : more_[1]) same = std::max(same, counter.come.load(std::memory_order_relaxed));
  skipped += same_.skipped.load(std::memory_order_relaxed);
  return {come + same, come + same - skipped};
}

} // namespace effects
