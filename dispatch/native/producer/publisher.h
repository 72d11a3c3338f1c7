// The producers' side: from an effect on a device's thread to bytes in a ring.
//
// Every producing thread has a ring of its own for each publisher that it publishes to. What a full ring means is a
// setting: the producer waits (nothing is lost), or the record is dropped. No Python lock is taken here.
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
  std::atomic<uint64_t> released{0};   // records that left in order
  std::atomic<uint64_t> dropped{0};    // records lost because a ring was full
  std::atomic<uint64_t> discarded{0};  // other devices' copies, and what came of a program that had failed
  std::atomic<uint64_t> cancelled{0};  // callbacks that could not run, because their program had failed
  std::atomic<uint64_t> waited{0};     // times a producer found its ring full and waited
  std::atomic<uint64_t> high_water{0}; // most bytes that one ring held

  void note_high_water(uint64_t used);
};

// The time in seconds since 1970, as Python's `time.time()` has it.
double UnixTime();

// Gets all that is published, before it can be lost, and what the host notes besides. It is never destroyed.
class Tap {
public:
  // Any thread. The size in the header is of no use here.
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

  // How many need the time at which records are published.
  std::atomic<uint32_t> time_users{0};

  std::atomic<Tap *> tap{nullptr};

  Stats stats;
  ClosedPrograms closed;
  WholeValues whole_values;

  // How many programs have been dispatched, each plain effect being one.
  std::atomic<uint64_t> dispatches{0};

  // Any thread: publishes one record, into the calling thread's ring. Returns false when it was dropped, which a marker
  // never is, nor what a device waits for. Throws std::bad_alloc, behind which the order goes on without the record,
  // and std::runtime_error where nothing may be published.
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
               uint16_t flags = 0, uint32_t reply = 0) {
    return publish(kind, site, token, device, spans, count, flags, reply, nullptr);
  }
  // The same for a payload that has memory of its own, which is not copied if it is large.
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, WholePayload &&whole, uint16_t flags) {
    const Span span{whole.block.get(), whole.size};
    return publish(kind, site, token, device, &span, 1, flags, 0, &whole.block);
  }

  // Any thread: leaves out the ordered effect with this token, behind which the order goes on.
  void skip(const Token &token, int32_t device);

  // Any thread: what the host does, for the tap alone.
  void note(Kind kind, const Token &token, std::string_view text = {}, uint64_t site = 0, int32_t device = kAllDevices);

  // All that has been published.
  Published count_published();

  // From now on publishing throws, and says why. Only for a process in which the calling thread is the only one.
  void refuse(std::string why);
  bool refuses() const { return !why_refused_.empty(); }
  void throw_if_refused() const;

  // Consumer: the block of a large record that has left its ring.
  Block take_large(const RecordHeader &header, const std::byte *payload);

  // Consumer: calls `visit(ring)` for the ring of every thread that ever published, and forgets the rings of threads
  // that have ended and left nothing. If `visit` returns false, stops, and the next call goes on with the next ring.
  // Returns whether all rings have been visited.
  template <typename Visit>
  bool for_each_ring(Visit &&visit);

private:
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
               uint16_t flags, uint32_t reply, Block *own);
  ProducerRing &this_thread_ring();
  ProducerRing &make_ring();

  // Beside the ring.
  bool admit_large(ProducerRing &mine, size_t payload);
  std::byte *make_room(ProducerRing &mine, const RecordHeader &header);
  bool drop(ProducerRing &mine, const RecordHeader &header);
  void leave_out(ProducerRing &mine, const RecordHeader &header);
  bool keep(ProducerRing &mine, RecordHeader header, const Span *spans, size_t count);

  void copy_rings();
  void forget_ring(const std::shared_ptr<ProducerRing> &ring);

  WakeUp &wake_up_;
  std::string why_refused_; // empty: nothing is
  const uint64_t id_;       // no other publisher of the process has or had it
  std::atomic<size_t> large_bytes_{0};

  std::mutex rings_mutex_;
  std::vector<std::shared_ptr<ProducerRing>> rings_;   // guarded by rings_mutex_
  Published published_before_;                         // the same; through rings that are forgotten
  std::vector<std::shared_ptr<ProducerRing>> visited_; // the consumer's copy
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
