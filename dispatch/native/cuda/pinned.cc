#include "pinned.h"

namespace effects::cuda {

Slot::~Slot() {
  if (pool_ != nullptr && data_ != nullptr) pool_->give_back(data_, size_);
}

Slot PinnedPool::take(const Driver &driver, size_t size) {
  size_t rounded = kSmallest;
  while (rounded < size) rounded *= 2;
  {
    std::lock_guard lock(mutex_);
    if (auto it = free_.find(rounded); it != free_.end() && !it->second.empty()) {
      Slot slot(this, it->second.back(), rounded);
      it->second.pop_back();
      return slot;
    }
  }
  const size_t size_of_block = rounded < kBlock ? kBlock : rounded;
  void *made = nullptr;
  driver.allocate_pinned(&made, size_of_block, kPortable | kMapped);
  auto *const block = static_cast<std::byte *>(made);
  std::lock_guard lock(mutex_);
  for (size_t at = rounded; at < size_of_block; at += rounded) free_[rounded].push_back(block + at);
  return Slot(this, block, rounded);
}

void PinnedPool::give_back(std::byte *data, size_t size) {
  std::lock_guard lock(mutex_);
  free_[size].push_back(data);
}

PinnedPool &pinned_pool() {
  static auto *const instance = new PinnedPool();
  return *instance;
}

} // namespace effects::cuda
