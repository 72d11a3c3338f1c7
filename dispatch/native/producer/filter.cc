#include "filter.h"

#include <chrono>

namespace effects {

Filter::Counter &Filter::counter_of_many(uint32_t place) {
  std::lock_guard lock(mutex_);
  return more_[place];
}

bool Filter::is_within_limits(Counter &counter) {
  const double least = min_seconds.load(std::memory_order_relaxed);
  const double now =
      least == 0 ? 0 : std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  std::lock_guard lock(mutex_);
  const uint64_t skipped = counter.skipped.load(std::memory_order_relaxed); // first: each of them has come
  const uint64_t number = counter.come.fetch_add(1, std::memory_order_relaxed);
  if (is_on() && is_nth(number) && number - skipped < first.load(std::memory_order_relaxed) &&
      (least == 0 || now - counter.last >= least)) {
    if (least != 0) counter.last = now;
    return true;
  }
  counter.skipped.fetch_add(1, std::memory_order_relaxed);
  return false;
}

Filter::Program &Filter::program_of(const Token &token) {
  const uint64_t key = uint64_t{token.stream} << 32 | token.epoch;
  const auto [program, is_new] = programs_.try_emplace(key);
  if (is_new) {
    in_order_.push_back(key);
    if (in_order_.size() > kPrograms) {
      programs_.erase(in_order_.front());
      in_order_.pop_front();
    }
  }
  return program->second;
}

// Devices of one program reach a line at different times. If each decided for itself, one would publish an effect that
// another leaves out, and the drain would take whatever comes first. So the first device that reaches an effect
// decides, and its record or gap stands for all.
Decision Filter::shows_same(const Token &token) {
  std::lock_guard lock(same_mutex_);
  Program &program = program_of(token);
  const uint64_t place = uint64_t{token.phase} << 32 | token.index;
  if (program.is_known && place <= program.newest) return Decision::kElsewhere;
  program.is_known = true;
  program.newest = place;
  return shows(kAllDevices) ? Decision::kShow : Decision::kLeaveOut;
}

bool Filter::shows_copy(int32_t device, const Token &token, uint32_t devices) {
  std::lock_guard lock(same_mutex_);
  Program &program = program_of(token);
  const uint64_t number = program.come[device]++;
  if (number == program.begin + program.copies.size())
    program.copies.push_back(2 * devices | static_cast<uint32_t>(shows(kAllDevices)));
  uint32_t &copy = program.copies[number - program.begin];
  copy -= 2;
  const bool is_shown = copy & 1;
  for (; !program.copies.empty() && program.copies.front() < 2; ++program.begin) program.copies.pop_front();
  return is_shown;
}

Filter::Counts Filter::counts() {
  std::lock_guard lock(mutex_);
  uint64_t come = 0, skipped = 0;
  const auto add = [&](const Counter &counter) {
    skipped += counter.skipped.load(std::memory_order_relaxed); // first: each of them has come
    come += counter.come.load(std::memory_order_relaxed);
  };
  add(common_);
  for (const Counter &counter : few_) add(counter);
  for (const auto &[place, counter] : more_) add(counter);
  return {come, come - skipped};
}

} // namespace effects
