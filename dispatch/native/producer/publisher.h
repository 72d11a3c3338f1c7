// The producers: from an effect on a device's thread to bytes in a ring.
//
// Every producing thread has its own ring for each publisher. A setting says what happens at a full ring: the producer
// waits (nothing is lost), or the record is dropped. No Python lock is taken here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../drain/wake_up.h"
#include "../wire.h"
#include "bytes.h"
#include "closed_programs.h"
#include "producer_ring.h"
#include "whole_values.h"

namespace effects {

struct Stats {
  std::atomic<uint64_t> released{0};   // released records
  std::atomic<uint64_t> dropped{0};    // records lost because a ring was full
  std::atomic<uint64_t> discarded{0};  // other devices' copies, and late records of failed programs
  std::atomic<uint64_t> cancelled{0};  // callbacks that did not run, because their program had failed
  std::atomic<uint64_t> waited{0};     // waits of producers for a full ring
  std::atomic<uint64_t> high_water{0}; // most bytes that one ring held

  void note_high_water(uint64_t used);
};

// The time in seconds since 1970, as Python's `time.time()` has it.
double UnixTime();

// Gets all published records, before they can be dropped, and the host's notes. Never destroyed.
class Tap {
public:
  // Any thread. The size in the header is meaningless here.
  virtual void take(const RecordHeader &header, const Span *spans, size_t count) noexcept = 0;

protected:
  ~Tap() = default;
};

class Publisher {
public:
  explicit Publisher(WakeUp &wake_up);
  Publisher(const Publisher &) = delete;

  // Set by the host; `ring_bytes` counts for rings made afterwards.
  std::atomic<size_t> ring_bytes{size_t{1} << 20};
  std::atomic<WhenFull> when_full{WhenFull::kWait};

  // The number of observers that need the time at which records are published.
  std::atomic<uint32_t> time_users{0};

  std::atomic<Tap *> tap{nullptr};

  Stats stats;
  ClosedPrograms closed;
  WholeValues whole_values;

  // The number of dispatched programs, each plain effect being one.
  std::atomic<uint64_t> dispatches{0};

  // Any thread: publishes one record, into the calling thread's ring. Returns false if it was dropped; markers and
  // awaited records never are. Throws std::bad_alloc, after which the order continues without the record, and
  // std::runtime_error if publishing is refused.
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
               uint16_t flags = 0, uint32_t reply = 0) {
    return publish(kind, site, token, device, spans, count, flags, reply, nullptr);
  }
  // The same for a payload in a block, which is not copied if it is large.
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, WholePayload &&whole, uint16_t flags) {
    const Span span{whole.block.get(), whole.size};
    return publish(kind, site, token, device, &span, 1, flags, 0, &whole.block);
  }

  // Any thread: skips the ordered effect with this token, so that the order continues.
  void skip(const Token &token, int32_t device);

  // Any thread: a note of the host, for the tap only.
  void note(Kind kind, const Token &token, std::string_view text = {}, uint64_t site = 0, int32_t device = kAllDevices);

  // The counts over all rings.
  Published count_published();

  // From now on publishing throws an error with `why`. Only for a single-threaded process (a forked child).
  void refuse(std::string why);
  bool refuses() const { return !why_refused_.empty(); }
  void throw_if_refused() const;

  // Consumer: takes the block of a large record that is out of its ring.
  Block take_large(const RecordHeader &header, const std::byte *payload);

  // Consumer: calls `visit(ring)` for every thread's ring, and forgets empty rings of ended threads. Stops if `visit`
  // returns false, and the next call continues with the next ring. Returns true if all rings have been visited.
  template <typename Visit>
  bool for_each_ring(Visit &&visit);

private:
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
               uint16_t flags, uint32_t reply, Block *own);
  ProducerRing &this_thread_ring();
  ProducerRing &make_ring();

  // Into the side list.
  bool admit_large(ProducerRing &mine, size_t payload);
  std::byte *make_room(ProducerRing &mine, const RecordHeader &header);
  bool drop(ProducerRing &mine, const RecordHeader &header);
  void leave_out(ProducerRing &mine, const RecordHeader &header);
  bool keep(ProducerRing &mine, RecordHeader header, const Span *spans, size_t count);

  void copy_rings();
  void forget_ring(const std::shared_ptr<ProducerRing> &ring);

  WakeUp &wake_up_;
  std::string why_refused_; // empty: publishing is not refused
  const uint64_t id_;       // unique in the process, never reused
  std::atomic<size_t> large_bytes_{0};

  std::mutex rings_mutex_;
  std::vector<std::shared_ptr<ProducerRing>> rings_;   // guarded by rings_mutex_
  Published published_before_;                         // the same; the counts of forgotten rings
  std::vector<std::shared_ptr<ProducerRing>> visited_; // the consumer's copy of `rings_`
  size_t next_visited_ = 0;                            // the consumer's
};

template <typename Visit>
bool Publisher::for_each_ring(Visit &&visit) {
  if (next_visited_ == visited_.size()) copy_rings();
  while (next_visited_ < visited_.size()) {
    const auto &ring = visited_[next_visited_++];
    // Read before the visit: what an ended thread published is visible to it.
    const bool abandoned = ring->abandoned.load(std::memory_order_acquire);
    const bool go_on = visit(*ring);
    if (abandoned && ring->ring.used() == 0 && !ring->has_side()) forget_ring(ring);
    if (!go_on) break;
  }
  return next_visited_ == visited_.size();
}

} // namespace effects
