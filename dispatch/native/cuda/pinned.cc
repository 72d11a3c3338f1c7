#include "pinned.h"

namespace effects::cuda {

Slot::~Slot() {
  if (pool_ != nullptr && data_ != nullptr) pool_->give_back(data_, size_);
}

Slot PinnedPool::take(const Driver &driver, size_t size) {
  size_t rounded = kSmallest;
  while (rounded < size) rounded *= 2;
  std::vector<std::byte *> surplus;
  std::byte *taken = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (auto it = free_.find(rounded); it != free_.end() && !it->second.empty()) {
      taken = it->second.back();
      it->second.pop_back();
      kept_ -= rounded;
    }
    for (auto it = free_.rbegin(); it != free_.rend() && kept_ > kMostKept; ++it) // the largest first
      while (!it->second.empty() && kept_ > kMostKept) {
        surplus.push_back(it->second.back());
        it->second.pop_back();
        kept_ -= it->first;
      }
  }
  Slot slot(this, taken, rounded);
  for (std::byte *const data : surplus) driver.free_pinned(data);
  if (taken != nullptr) return slot;
  void *made = nullptr;
  driver.allocate_pinned(&made, rounded, kPortable | kMapped);
  return Slot(this, static_cast<std::byte *>(made), rounded);
}

size_t PinnedPool::kept() {
  std::lock_guard lock(mutex_);
  return kept_;
}

void PinnedPool::give_back(std::byte *data, size_t size) {
  std::lock_guard lock(mutex_);
  free_[size].push_back(data);
  kept_ += size;
}

PinnedPool &pinned_pool() {
  static auto *const instance = new PinnedPool();
  return *instance;
}

} // namespace effects::cuda
