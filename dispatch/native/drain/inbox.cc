#include "inbox.h"

#include <utility>

namespace effects {

void Inbox::forget(uint32_t thread) {
  {
    std::lock_guard lock(mutex_);
    next_epoch_.erase(thread);
  }
  post({Notice::kForget, {thread, 0, 0}, 0});
}

void Inbox::number_anew(uint32_t thread, uint64_t dispatches) {
  std::lock_guard lock(mutex_);
  next_epoch_[thread] = static_cast<uint32_t>(dispatches);
}

uint32_t Inbox::next_epoch(uint32_t thread) {
  std::lock_guard lock(mutex_);
  return next_epoch_[thread];
}

void Inbox::post(const Notice &notice) {
  bool slept;
  {
    std::lock_guard lock(mutex_);
    notices_.push_back(notice);
    slept = std::exchange(sleeps_, false);
  }
  if (slept) wake_up_.set_work_pending();
}

void Inbox::knock() {
  bool slept;
  {
    std::lock_guard lock(mutex_);
    slept = std::exchange(sleeps_, false);
  }
  if (slept) wake_up_.set_work_pending();
}

const std::vector<Notice> &Inbox::read() {
  reading_.clear();
  std::lock_guard lock(mutex_);
  std::swap(notices_, reading_);
  return reading_;
}

} // namespace effects
