// Pinned memory of the host's, from which and into which devices copy while the host goes on. A slot belongs to one
// launch, until the stream has come to the host function that gives it back, or its arrival has been published.
//
// It is never given back to the driver, which would wait for devices there: for one that stands at a collective,
// perhaps, that the thread which frees the memory has yet to launch on another.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "driver.h"

namespace effects::cuda {

class PinnedPool;

// Memory, aligned to 64 bytes, until it is given back or abandoned. Who destroys it may be a host function, which may
// call no function of the driver's, and so must not free it.
class Slot {
public:
  Slot() = default;
  Slot(PinnedPool *pool, std::byte *data, size_t size) : pool_(pool), data_(data), size_(size) {}
  Slot(Slot &&other) noexcept { swap(other); }
  Slot &operator=(Slot &&other) noexcept {
    swap(other);
    return *this;
  }
  ~Slot();

  std::byte *data() const { return data_; }
  // Something may still copy from or to it, and nothing will tell when that is over: it is used no more.
  void abandon() { pool_ = nullptr; }

private:
  void swap(Slot &other) {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  PinnedPool *pool_ = nullptr;
  std::byte *data_ = nullptr;
  size_t size_ = 0;
};

class PinnedPool {
public:
  // A thread that launches. Throws DriverError and std::bad_alloc.
  Slot take(const Driver &driver, size_t size);

private:
  friend class Slot;
  void give_back(std::byte *data, size_t size);

  static constexpr size_t kSmallest = 256;
  static constexpr size_t kBlock = size_t{1} << 18; // what the driver is asked for where slots are smaller

  // Never held while the driver is called, which may wait for a device there, and so for a host function that gives a
  // slot back.
  std::mutex mutex_;
  std::map<size_t, std::vector<std::byte *>> free_; // by size; guarded by mutex_
};

// The process's own.
PinnedPool &pinned_pool();

} // namespace effects::cuda
