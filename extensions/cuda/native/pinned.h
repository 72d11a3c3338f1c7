// Pinned host memory, which devices copy from and to asynchronously. A slot belongs to one launch, until the stream
// reaches the host function that frees it, or its arrival has been published. The slots of a stream's launches are
// bounded: a thread that launches far ahead of the device waits.
//
// Never returned to the driver, which would wait for devices there: perhaps for one in a collective that the freeing
// thread has yet to launch on another device.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "driver.h"

namespace effects::cuda {

class PinnedPool;

// Memory, aligned to 64 bytes, until it is given back or abandoned. It may be destroyed in a host function, which must
// not call the driver, and so cannot free it.
class Slot {
public:
  Slot() = default;
  Slot(PinnedPool *pool, Stream stream, size_t held) : pool_(pool), stream_(stream), held_(held) {}
  Slot(Slot &&other) noexcept { swap(other); }
  Slot &operator=(Slot &&other) noexcept {
    swap(other);
    return *this;
  }
  ~Slot();

  std::byte *data() const { return data_; }
  // A copy may still be under way, with no notice of its end: the memory is never reused.
  void abandon() {
    data_ = nullptr;
    *this = Slot();
  }

private:
  friend class PinnedPool;
  void swap(Slot &other) {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
    std::swap(held_, other.held_);
  }
  PinnedPool *pool_ = nullptr;
  std::byte *data_ = nullptr;
  size_t size_ = 0;
  Stream stream_ = nullptr;
  size_t held_ = 0; // of the stream's bound
};

class PinnedPool {
public:
  // The launching thread. With a stream, waits while that stream's launches hold too much: until their records are
  // published, and so until the drain takes these. Never waits for another stream, which may be in a collective that
  // this thread has yet to launch. A launch that holds a slot must not wait for another one. Throws DriverError, also
  // if the stream fails meanwhile, and std::bad_alloc.
  Slot take(const Driver &driver, size_t size, Stream stream = nullptr);

private:
  friend class Slot;
  static size_t size_of_slot(size_t size);
  // Takes a free slot of this size, or for more than a block the smallest larger one. Returns true if there is one.
  bool take_free(Slot &slot);
  void give_back(const Slot &slot);
  void wait_for_room(const Driver &driver, size_t size, Stream stream);

  static constexpr size_t kSmallest = 256;
  static constexpr size_t kBlock = size_t{1} << 18; // allocated from the driver, or a multiple of it
  static constexpr size_t kMost = size_t{1} << 26;  // the bound of a stream's launches

  // Never held during a call of the driver, which may wait for a device, and so for a host function that frees a slot.
  std::mutex mutex_; // guards all below
  std::condition_variable given_back_;
  std::map<size_t, std::vector<std::byte *>> free_; // by size
  std::map<Stream, size_t> held_;                   // by stream: bytes of launches under way
};

// The instance of the process.
PinnedPool &pinned_pool();

} // namespace effects::cuda
