// One producing thread's ring, and a side list for what does not fit into the ring.
//
// The producer is the thread that owns the ring; the consumer is the leader of the drain.
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

// Indices that were dropped because a ring was full, or filtered out: the order must not wait for them.
struct DropRange {
  Token first;
  uint64_t count;
  int32_t device = 0;
};

// The counts of published records, of a thread or of all.
struct Published {
  uint64_t records = 0; // dropped ones included, markers not
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

  // Producer: counts a published record. Only the producer writes, so a plain store is enough, and no cache line is
  // contended.
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

  // Guards the side list, and is held by the drain while it scans the ring. Uncontended unless the ring is full.
  std::mutex consumer;

  // The side list, with `consumer` held: records that must not be dropped and found the ring full.
  void keep(std::vector<std::byte> record);
  // A record was dropped. Runs of dropped indices are kept as one range.
  void note_drop(const RecordHeader &header);

  struct Side {
    std::vector<std::vector<std::byte>> kept;
    std::vector<DropRange> drops;
  };
  Side take_side();
  // Without the lock: true if the side list is not empty.
  bool has_side() const {
    return has_side_.load(std::memory_order_acquire) ||
           skipped_.load(std::memory_order_acquire) != skips_taken_.load(std::memory_order_relaxed);
  }

  // Producer: skips the effect with this token. Consecutive skips are one range, which grows without the lock.
  void skip(const Token &token, int32_t device);

  // Producer: waits until `ready()`, the consumer has made room, or a while has passed: there is no notification when
  // the drain stops, or when other rings' large records are freed.
  template <typename Ready>
  void await_room(Ready &&ready);
  // Consumer: it has made room.
  void notify_room();

private:
  void begin_skips(const Token &token, int32_t device);
  void take_skips();

  alignas(64) std::atomic<uint64_t> records_{0};
  std::atomic<uint64_t> bytes_{0};

  // The current range of skips; the producer writes its beginning with the lock held. On the producer's cache line, as
  // the counts above.
  Token skips_{};
  int32_t skipping_device_ = 0;
  std::atomic<uint64_t> skipped_{0};

  alignas(64) Side side_;
  std::atomic<uint64_t> skips_taken_{0}; // of that range, by the consumer, with the lock held
  std::atomic<bool> has_side_{false};

  std::mutex room_mutex_;
  std::condition_variable room_;
  std::atomic<bool> waiting_{false}; // the consumer takes no lock while this is false
};

// `waiting_` and the ring's position are two atomics. Without the fences, here and in notify_room():
//   1. The producer finds the ring full.
//   2. The consumer frees room.
//   3. The consumer reads `waiting_`: false, since the producer's store is not visible yet. It does not notify.
//   4. The producer's store becomes visible, and the producer sleeps although there is room.
// Each fence orders its side's store before its side's load, so at least one of the two sees the other's store.
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
