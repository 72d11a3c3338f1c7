#include "pinned.h"

#include <algorithm>

namespace effects::cuda {

Slot::~Slot() {
  if (pool_ != nullptr) pool_->give_back(*this);
}

size_t PinnedPool::size_of_slot(size_t size) {
  if (size > kBlock) return (size + kBlock - 1) / kBlock * kBlock;
  size_t rounded = kSmallest;
  while (rounded < size) rounded *= 2;
  return rounded;
}

Slot PinnedPool::take(const Driver &driver, size_t size, Stream stream) {
  if (stream != nullptr) wait_for_room(driver, size, stream);
  Slot slot(this, stream, size);
  slot.size_ = size_of_slot(size);
  if (take_free(slot)) return slot;
  const size_t size_of_block = std::max(slot.size_, kBlock);
  void *made = nullptr;
  driver.allocate_pinned(&made, size_of_block, kPortable | kMapped);
  slot.data_ = static_cast<std::byte *>(made);
  std::lock_guard lock(mutex_);
  for (size_t at = slot.size_; at < size_of_block; at += slot.size_) free_[slot.size_].push_back(slot.data_ + at);
  return slot;
}

bool PinnedPool::take_free(Slot &slot) {
  std::lock_guard lock(mutex_);
  const auto last = slot.size_ > kBlock ? free_.end() : free_.upper_bound(slot.size_);
  const auto found =
      std::find_if(free_.lower_bound(slot.size_), last, [](const auto &each) { return !each.second.empty(); });
  if (found == last) return false;
  slot.size_ = found->first;
  slot.data_ = found->second.back();
  found->second.pop_back();
  return true;
}

void PinnedPool::wait_for_room(const Driver &driver, size_t size, Stream stream) {
  std::unique_lock lock(mutex_);
  const auto has_room = [&] { return held_[stream] == 0 || held_[stream] + size <= kMost; };
  while (!given_back_.wait_for(lock, kLook, has_room)) {
    lock.unlock();
    CheckStream(driver, stream);
    lock.lock();
  }
  held_[stream] += size;
}

void PinnedPool::give_back(const Slot &slot) {
  std::lock_guard lock(mutex_);
  if (slot.data_ != nullptr) free_[slot.size_].push_back(slot.data_);
  if (slot.stream_ == nullptr) return;
  held_[slot.stream_] -= slot.held_;
  given_back_.notify_all();
}

PinnedPool &pinned_pool() {
  static auto *const instance = new PinnedPool();
  return *instance;
}

} // namespace effects::cuda
