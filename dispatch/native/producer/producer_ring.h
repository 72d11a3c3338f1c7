// One producing thread's ring, and what does not fit into it.
//
// The producer is the thread that has it, the consumer the one that leads the drain.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "../wire.h"
#include "ring.h"

namespace effects {

// Indices that were dropped because a ring was full, or left out: the order must not wait for them.
struct DropRange {
  Token first;
  uint64_t count;
  int32_t device = 0;
};

// What a thread has published, or all have.
struct Published {
  uint64_t records = 0; // also those that were dropped; no markers
  uint64_t bytes = 0;   // headers included

  Published &operator+=(const Published &other) {
    records += other.records;
    bytes += other.bytes;
    return *this;
  }
};

class ProducerRing {
public:
  explicit ProducerRing(size_t capacity) : ring(capacity) {}
  ProducerRing(const ProducerRing &) = delete;

  Ring ring;

  // Producer: it has published. Only it counts here, so that no thread waits for another's cache line, and a store is
  // enough.
  void count(bool is_record, size_t bytes) {
    records_.store(records_.load(std::memory_order_relaxed) + is_record, std::memory_order_relaxed);
    bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  }
  // Any thread.
  Published published() const {
    return {records_.load(std::memory_order_relaxed), bytes_.load(std::memory_order_relaxed)};
  }

  // The producing thread has ended.
  std::atomic<bool> abandoned{false};

  // Guards the side list, and is held by the drain while it scans the ring. Uncontended but for a full ring.
  std::mutex consumer;

  // Beside the ring, with `consumer` held: what may not be dropped and found the ring full.
  void keep(std::vector<std::byte> record);
  // A record was dropped. Runs of dropped indices are kept as one range.
  void note_drop(const RecordHeader &header);

  struct Side {
    std::vector<std::vector<std::byte>> kept;
    std::vector<DropRange> drops;
  };
  Side take_side();
  // Without the lock: whether there is something beside the ring.
  bool has_side() const {
    return has_side_.load(std::memory_order_acquire) ||
           skipped_.load(std::memory_order_acquire) != skips_taken_.load(std::memory_order_relaxed);
  }

  // Producer: leaves out the effect with this token. A run of them is one range, which grows without the lock.
  void skip(const Token &token, int32_t device);

  // Producer: waits until `ready()`, or the consumer has made room, or a while has passed, since no notification tells
  // that the drain has stopped, nor of what other rings' large records take.
  template <typename Ready>
  void await_room(Ready &&ready);
  // Consumer: it has made some.
  void notify_room();

private:
  void begin_skips(const Token &token, int32_t device);
  void take_skips();

  alignas(64) std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> bytes_{0};

  // The run of effects that are being left out; the producer writes its beginning with the lock held. It has the
  // thread's own cache line, as the counts above.
  Token skips_{};
  int32_t skipping_device_ = 0;
  std::atomic<uint64_t> skipped_{0};

  alignas(64) Side side_;
  std::atomic<uint64_t> skips_taken_{0}; // of that run, by the consumer, with the lock held
  std::atomic<bool> has_side_{false};

  std::mutex room_mutex_;
  std::condition_variable room_;
  std::atomic<bool> waiting_{false}; // the consumer takes no lock while this is false
};

// `waiting_` and the ring's position are two atomics. Without the fences, here and in notify_room():
//   1. The producer looks at the ring: it is full.
//   2. The consumer gives room back.
//   3. The consumer looks at `waiting_`: false, since the producer's store is not visible yet. It notifies no producer.
//   4. The producer's store becomes visible, and the producer sleeps although there is room.
// Each fence orders its side's store before its side's look, so one of the two sees the other.
template <typename Ready>
void ProducerRing::await_room(Ready &&ready) {
  std::unique_lock lock(room_mutex_);
  waiting_.store(true, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready()) room_.wait_for(lock, std::chrono::milliseconds(5));
  waiting_.store(false, std::memory_order_relaxed);
}

// Inline: called after every scan of a ring that took something.
inline void ProducerRing::notify_room() {
  std::atomic_thread_fence(std::memory_order_seq_cst); // see await_room()
  if (waiting_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(room_mutex_);
    room_.notify_one();
  }
}

} // namespace effects
