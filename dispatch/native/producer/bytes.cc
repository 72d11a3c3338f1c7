#include "bytes.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <list>
#include <mutex>
#include <new>

namespace effects {
namespace {

using Clock = std::chrono::steady_clock;

// The header of a block. As long as a cache line, so that the block is aligned for vector instructions.
struct Head {
  size_t capacity; // of a large block, header included; else 0
  std::byte padding[64 - sizeof(size_t)];
};

constexpr size_t kLeastLarge = size_t{1} << 22;
constexpr size_t kMostKept = size_t{1} << 29;

std::byte *BytesOf(void *memory) { return static_cast<std::byte *>(memory) + sizeof(Head); }
Head *HeadOf(std::byte *block) { return reinterpret_cast<Head *>(block - sizeof(Head)); }

void *Map(size_t size) {
  void *const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, size, MADV_HUGEPAGE); // only advice: a refusal is fine
  return memory;
}
void Unmap(void *memory, size_t size) { munmap(memory, size); }

// The cache of freed large blocks, the newest first.
class LargePool {
public:
  void *take(size_t size) {
    std::unique_lock lock(mutex_);
    // The smallest block that fits, unless it is much too large: another payload may need that.
    auto best = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it)
      if (it->head->capacity >= size && it->head->capacity - size <= size / 4 &&
          (best == kept_.end() || it->head->capacity < best->head->capacity))
        best = it;
    if (best != kept_.end()) {
      Head *const head = best->head;
      kept_bytes_ -= head->capacity;
      used_bytes_ += head->capacity;
      kept_.erase(best);
      return head;
    }
    // A large allocation must not add to the kept memory.
    drop_to(size >= kMostKept ? 0 : kMostKept - size);
    lock.unlock();
    void *const memory = Map(size);
    if (memory == nullptr) return nullptr;
    static_cast<Head *>(memory)->capacity = size;
    lock.lock();
    used_bytes_ += size;
    return memory;
  }

  void give(Head *head) {
    std::lock_guard lock(mutex_);
    used_bytes_ -= head->capacity;
    drop_to(head->capacity >= kMostKept ? 0 : kMostKept - head->capacity);
    kept_bytes_ += head->capacity;
    kept_.push_front({head, Clock::now()});
  }

  void give_back(Clock::time_point freed_before) {
    std::lock_guard lock(mutex_);
    while (!kept_.empty() && kept_.back().freed <= freed_before) drop_last();
  }

  LargeBlocks count() {
    std::lock_guard lock(mutex_);
    return {used_bytes_, kept_bytes_};
  }

private:
  // With `mutex_` held.
  void drop_to(size_t bytes) {
    while (kept_bytes_ > bytes) drop_last();
  }
  void drop_last() {
    Head *const head = kept_.back().head;
    kept_bytes_ -= head->capacity;
    kept_.pop_back();
    Unmap(head, head->capacity);
  }

  struct Kept {
    Head *head;
    Clock::time_point freed;
  };
  std::mutex mutex_; // guards all below
  std::list<Kept> kept_;
  size_t kept_bytes_ = 0, used_bytes_ = 0;
};

// Never destroyed: the user's arrays may own blocks when the process ends.
LargePool &large_pool() {
  static auto *const pool = new LargePool();
  return *pool;
}

} // namespace

void Free::operator()(std::byte *block) const {
  Head *const head = HeadOf(block);
  if (head->capacity != 0)
    large_pool().give(head);
  else
    std::free(head);
}

Block AllocateBlock(size_t size) {
  const size_t with_head = size + sizeof(Head);
  if (size >= kLeastLarge) {
    void *const memory = large_pool().take(with_head);
    if (memory == nullptr) throw std::bad_alloc();
    return Block(BytesOf(memory));
  }
  void *const memory = std::aligned_alloc(sizeof(Head), (with_head + sizeof(Head) - 1) / sizeof(Head) * sizeof(Head));
  if (memory == nullptr) throw std::bad_alloc();
  static_cast<Head *>(memory)->capacity = 0;
  return Block(BytesOf(memory));
}

void GiveBackBlocks(std::chrono::milliseconds unused_for) { large_pool().give_back(Clock::now() - unused_for); }

LargeBlocks CountLargeBlocks() { return large_pool().count(); }

} // namespace effects
