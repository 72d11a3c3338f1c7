// Pinned memory of the host's, from which and into which devices copy while the host goes on. A slot belongs to one
// launch, until the stream has come to the host function that gives it back, or its arrival has been published. What
// the launches of a stream hold is bounded: who launches far ahead of the device waits.
//
// It is never given back to the driver, which would wait for devices there: for one that stands at a collective,
// perhaps, that the thread which frees the memory has yet to launch on another.
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

// Memory, aligned to 64 bytes, until it is given back or abandoned. Who destroys it may be a host function, which may
// call no function of the driver's, and so must not free it.
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
  // Something may still copy from or to it, and nothing will tell when that is over: it is used no more.
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
  size_t held_ = 0; // of what the stream's launches may hold
};

class PinnedPool {
public:
  // A thread that launches. With a stream it waits while that stream's launches hold too much: until their records are
  // published, and so until the drain takes these. It does not wait for another stream's, which may stand at a
  // collective that this thread has yet to launch. A launch that holds a slot already must not wait for another one.
  // Throws DriverError, also if the stream fails meanwhile, and std::bad_alloc.
  Slot take(const Driver &driver, size_t size, Stream stream = nullptr);

private:
  friend class Slot;
  static size_t size_of_slot(size_t size);
  // One of the slot's size, or the smallest above it if that is larger than a block. Returns whether there is one.
  bool take_free(Slot &slot);
  void give_back(const Slot &slot);
  void wait_for_room(const Driver &driver, size_t size, Stream stream);

  static constexpr size_t kSmallest = 256;
  static constexpr size_t kBlock = size_t{1} << 18; // what the driver is asked for, or a multiple of it
  static constexpr size_t kMost = size_t{1} << 26;  // what the launches of a stream hold

  // Never held while the driver is called, which may wait for a device there, and so for a host function that gives a
  // slot back.
  std::mutex mutex_; // guards all below
  std::condition_variable given_back_;
  std::map<size_t, std::vector<std::byte *>> free_; // by size
  std::map<Stream, size_t> held_;                   // by launches that are under way
};

// The process's own.
PinnedPool &pinned_pool();

} // namespace effects::cuda
