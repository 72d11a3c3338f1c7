#include "closed_programs.h"

namespace effects {

ClosedPrograms::ClosedPrograms() {
  for (auto &slot : closed_) slot.store(~uint64_t{0}, std::memory_order_relaxed); // no thread's number
}

void ClosedPrograms::note(const Token &token, uint32_t devices) {
  const uint32_t thread = ThreadOf(token);
  const uint64_t key = KeyOf(thread, token.epoch);
  if (devices > 1) {
    std::lock_guard lock(mutex_);
    const auto it = closing_.try_emplace(key, 0).first;
    if (++it->second < devices) return;
    closing_.erase(it);
  }
  closed_[SlotOf(thread, token.epoch)].store(key, std::memory_order_relaxed);
}

void ClosedPrograms::forget(uint32_t thread, uint32_t epoch) {
  std::lock_guard lock(mutex_);
  closing_.erase(KeyOf(thread, epoch));
}

} // namespace effects
