// The consumer: takes records out of the rings, restores their order and turns them into batches for Python.
//
// One host thread leads (see WakeUp): it calls next_batch() in a loop and replays what it gets. It holds no Python lock
// while it waits. A batch has text, which only has to be written, and records for Python, whose replay may run
// functions of the user. Meanwhile the leader offers the lead to a standby thread, since such a function may wait for
// other effects.
//
// Any thread may call the functions for the host; only the leader calls next_batch().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../order/parked.h"
#include "../order/release_order.h"
#include "../producer/publisher.h"
#include "batch.h"
#include "replies.h"
#include "sites.h"
#include "wake_up.h"

namespace effects {

// A message from the host to the drain.
struct Notice {
  enum What { kOpen, kFail, kLose, kForget, kHold, kLetGo, kResume, kNest } what;
  EpochInfo info;
  uint64_t number; // of the opened dispatch, the failed device, or the run that is over
};

// The inbox of the drain: the host's notices, in order, and if the drain must be woken for them.
//
// Any thread may call all but read() and try_to_sleep(), which are for the leader.
class Inbox {
public:
  explicit Inbox(WakeUp &wake_up) : wake_up_(wake_up) {}

  // A program of this thread is about to be dispatched. The epoch's number and the dispatch's, which `dispatches`
  // counts, are taken in one step with the notice, so that the drain reads of epochs and of dispatches in their order.
  template <typename Dispatches>
  uint32_t open(uint32_t thread, uint64_t sink, const PrintOptions *options, Dispatches &dispatches);
  // The thread has ended.
  void forget(uint32_t thread);
  // A new thread reuses a forgotten thread's number, and devices may still have tokens of that thread's epochs. From
  // now on no epoch has one of those numbers, since a thread has had no more dispatches than all threads together.
  void number_anew(uint32_t thread, uint64_t dispatches);
  uint32_t next_epoch(uint32_t thread);
  void post(const Notice &notice);
  // Wakes the drain without a notice.
  void knock();

  // For the leader: the notices since the last call, valid until the next call.
  const std::vector<Notice> &read();
  // For the leader, before it sleeps. True if it may: there is no notice, and `is_idle()`. From then on any notice
  // wakes it.
  template <typename IsIdle>
  bool try_to_sleep(IsIdle &&is_idle);

private:
  WakeUp &wake_up_;
  std::mutex mutex_; // guards all below but `reading_`
  std::vector<Notice> notices_;
  std::unordered_map<uint32_t, uint32_t> next_epoch_; // by thread
  bool sleeps_ = false;                               // the drain waits to be woken
  std::vector<Notice> reading_;                       // the leader's
};

// The look into the inbox and falling asleep are one step under the mutex, and so are posting and the look if the drain
// sleeps. Otherwise:
//   1. The leader finds the inbox empty.
//   2. The host posts a notice, finds that the drain does not sleep, and does not wake it.
//   3. The leader falls asleep, and the notice waits for the next one.
template <typename IsIdle>
bool Inbox::try_to_sleep(IsIdle &&is_idle) {
  std::lock_guard lock(mutex_);
  return sleeps_ = notices_.empty() && is_idle();
}

// Inline: every dispatch comes by.
template <typename Dispatches>
uint32_t Inbox::open(uint32_t thread, uint64_t sink, const PrintOptions *options, Dispatches &dispatches) {
  bool slept;
  uint32_t epoch;
  {
    std::lock_guard lock(mutex_);
    epoch = next_epoch_[thread]++;
    const uint64_t dispatch = dispatches.fetch_add(1, std::memory_order_relaxed) + 1;
    notices_.push_back({Notice::kOpen, {thread, epoch, sink, false, options}, dispatch});
    slept = sleeps_;
    sleeps_ = false;
  }
  if (slept) wake_up_.set_work_pending();
  return epoch;
}

// The limit on parked records, and the way out when records stall.
//
// Early records are parked in memory, up to a limit; beyond it they stay in their rings, and their producers wait. If
// then no record of their thread is released for a while, the program that is next may need the threads that wait: a
// deadlock. So the limit is raised, at the price of memory.
//
// For the leader of the drain only.
class Parking {
public:
  explicit Parking(ReleaseOrder &order) : order_(order) {}

  // True if this record may leave its ring.
  bool admits(const RecordHeader &header) { return order_.parked_bytes() <= limit_ || order_.releasable(header); }
  // The `scan`-th scan left a record of `thread` as the oldest in its ring.
  void note_stalled(uint32_t thread, uint64_t scan);

  // After a scan: raises the limit if a ring has stalled for long, and lowers it once nothing is parked.
  void adapt(size_t ring_bytes, uint64_t scans);

  // The device whose record is next may wait for a device that waits for its answer. If no record of their program has
  // come or left for long, that is assumed, and the order relaxed.
  void relax_stuck_regions();

private:
  static constexpr size_t kRings = 8; // the limit is the capacity of this many rings
  static constexpr std::chrono::milliseconds kStalledPatience{100};
  static constexpr std::chrono::seconds kStuckPatience{2};

  struct StalledRing {
    uint64_t scan;     // the last scan that found it stalled; valid if not older than the last finished scan
    uint64_t progress; // ReleaseOrder's, at `since`
    std::chrono::steady_clock::time_point since;
  };
  struct StuckRegion {
    uint64_t progress;
    std::chrono::steady_clock::time_point since;
  };

  ReleaseOrder &order_;
  size_t limit_ = kRings * (size_t{1} << 20);
  std::unordered_map<uint32_t, StalledRing> stalled_; // by thread
  std::unordered_map<uint32_t, StuckRegion> stuck_;   // by thread: regions whose devices may wait for each other
};

class Drain {
public:
  Drain(WakeUp &wake_up, Publisher &publisher, Sites &sites, Replies &replies);

  // Host: `thread` is about to dispatch a program whose text goes to `sink` (0: Python formats it). Returns the number
  // of its epoch. Never waits for the drain. Inline: called at every dispatch.
  uint32_t open(uint32_t thread, uint64_t sink, const PrintOptions *options = nullptr) {
    return inbox_.open(thread, sink, options, publisher_.dispatches);
  }

  // Host: the program of this epoch failed or never ran.
  void fail(uint32_t thread, uint32_t epoch);
  // Host: the program failed on this device, and continues on others.
  void lose(uint32_t thread, uint32_t epoch, int32_t device);
  // Host: the thread and all of its epochs have ended.
  void forget(uint32_t thread) { inbox_.forget(thread); }
  // Host: a new thread reuses its number.
  void number_anew(uint32_t thread) { inbox_.number_anew(thread, publisher_.dispatches); }
  // Host: a batch's records for Python have been replayed.
  void resume(uint32_t thread, uint64_t run) { inbox_.post({Notice::kResume, {thread, 0, 0}, run}); }
  // Host: no ordered record of this stream is released until let_go().
  void hold(uint32_t thread) { inbox_.post({Notice::kHold, {thread, 0, 0}, 0}); }
  void let_go(uint32_t thread) { inbox_.post({Notice::kLetGo, {thread, 0, 0}, 0}); }
  // Host: this thread's programs are part of effects that are being replayed.
  void nest(uint32_t thread) { inbox_.post({Notice::kNest, {thread, 0, 0}, 0}); }
  // A program that is, or may be, loaded does not need the site any more.
  void release_site(uint64_t site);
  // True if all records go to Python, also those that native code could format.
  void show_python(bool all) { builder_.show_python(all); }
  // Nothing drains any more: whoever still waits for an answer gets an error.
  void fail_replies(const std::string &why);

  // The number of opened plain epochs, which is the number of the next one.
  uint32_t plain_opened() { return inbox_.next_epoch(kPlainThread); }

  // Leader: all records that can be released now. Waits for one: while programs run for `patience` at most, otherwise
  // without limit.
  Batch next_batch(std::chrono::milliseconds patience);

private:
  void read_inbox();
  bool collect(Batch &batch);
  bool scan(Batch &batch, bool &moved);
  void scan_ring(Batch &batch, ProducerRing &ring, bool &moved);
  void accept(Batch &batch, const std::byte *record);
  bool fall_asleep();

  WakeUp &wake_up_;
  Publisher &publisher_;
  Sites &sites_;
  Replies &replies_;
  Inbox inbox_;

  // For the leader only.
  ReleaseOrder order_;
  BatchBuilder builder_;
  Parking parking_;
  std::vector<uint32_t> late_; // numbers of replies that fail after the scan
  uint64_t scans_ = 0;         // finished scans
  std::chrono::steady_clock::time_point last_batch_{};
};

} // namespace effects
