// The consumer's side: takes records out of the rings, restores their order and turns them into a batch for Python.
//
// One host thread leads (see WakeUp): it calls next_batch() in a loop and replays what it gets. It holds no Python lock
// while it waits; what it gets is text that only has to be written, and records that Python must see, whose replay may
// run functions of the user's. Meanwhile it offers the lead to a thread that stands by, so that a function which waits
// for other effects does not wait in vain.
//
// Any thread may call what is for the host; the leader alone calls next_batch().
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

// One thing that the host tells the drain.
struct Notice {
  enum What { kOpen, kFail, kLose, kForget, kHold, kLetGo, kResume, kNest } what;
  EpochInfo info;
  uint64_t number; // of the dispatch that is opened; of the device that has failed; of the run that is over
};

// What the host tells the drain, in the order of its saying, and whether the drain must be woken for it.
//
// Any thread may call everything but read() and try_to_sleep(), which are the leader's.
class Inbox {
public:
  explicit Inbox(WakeUp &wake_up) : wake_up_(wake_up) {}

  // A program of this thread's is about to be dispatched. Its number and that of the dispatch, which `dispatches`
  // counts, are taken in one step with the notice: the drain reads of epochs, and of dispatches, in their order.
  template <typename Dispatches>
  uint32_t open(uint32_t thread, uint64_t sink, const PrintOptions *options, Dispatches &dispatches);
  // The thread has ended.
  void forget(uint32_t thread);
  // A thread has the number of a forgotten one, of which devices may still know epochs. None of these has the number of
  // an epoch from now on, as a thread has had no more dispatches than all threads together.
  void number_anew(uint32_t thread, uint64_t dispatches);
  uint32_t next_epoch(uint32_t thread);
  void post(const Notice &notice);
  // There is news, of which nothing need be said.
  void knock();

  // The leader: what has come since the last call; valid until the next one.
  const std::vector<Notice> &read();
  // The leader is about to sleep until it is woken. Whether it may: nothing has come, and `is_idle()`. From then on
  // whatever comes wakes it.
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

// Looking whether there is news and falling asleep are one step under the mutex, as are posting and looking whether the
// drain sleeps. Otherwise:
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

// How much may be parked, and what to do about records that do not get on.
//
// Records that came early are parked in memory, up to a limit; beyond it they stay in their rings, and their producers
// wait. If then nothing of their thread's leaves for a while, the program that is next may need the very threads that
// wait, which is a deadlock: the limit is raised, so that memory is the price.
//
// The leader of the drain alone calls everything here.
class Parking {
public:
  explicit Parking(ReleaseOrder &order) : order_(order) {}

  // Whether this record may leave its ring.
  bool admits(const RecordHeader &header) { return order_.parked_bytes() <= limit_ || order_.releasable(header); }
  // This scan, the `scan`-th, left one of `thread`'s records as the oldest in its ring.
  void note_stalled(uint32_t thread, uint64_t scan);

  // After the scan: raises the limit if a ring has stalled for long, and lowers it once nothing is parked.
  void adapt(size_t ring_bytes, uint64_t scans);

  // A device that waits for its answer may be what the device whose record is next waits for. That is taken to be so,
  // and the order relaxed, if nothing of their program's has come or left for long.
  void relax_stuck_regions();

private:
  static constexpr size_t kRings = 8; // the limit is what so many rings hold
  static constexpr std::chrono::milliseconds kStalledPatience{100};
  static constexpr std::chrono::seconds kStuckPatience{2};

  struct StalledRing {
    uint64_t scan;     // the last one that found it so; of interest if not older than the last one that is over
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
  std::unordered_map<uint32_t, StuckRegion> stuck_;   // by thread: those whose devices may wait for each other
};

class Drain {
public:
  Drain(WakeUp &wake_up, Publisher &publisher, Sites &sites, Replies &replies);

  // Host: `thread` is about to dispatch a program whose text goes to `sink` (0: Python formats it). Returns the number
  // of its epoch. Never waits for the drain. Inline: every dispatch comes by.
  uint32_t open(uint32_t thread, uint64_t sink, const PrintOptions *options = nullptr) {
    return inbox_.open(thread, sink, options, publisher_.dispatches);
  }

  // Host: the program of this epoch failed or never ran.
  void fail(uint32_t thread, uint32_t epoch);
  // Host: it failed on this device, and goes on on others.
  void lose(uint32_t thread, uint32_t epoch, int32_t device);
  // Host: the thread has ended and all its epochs have.
  void forget(uint32_t thread) { inbox_.forget(thread); }
  // Host: a thread has its number.
  void number_anew(uint32_t thread) { inbox_.number_anew(thread, publisher_.dispatches); }
  // Host: a batch's records for Python have been replayed.
  void resume(uint32_t thread, uint64_t run) { inbox_.post({Notice::kResume, {thread, 0, 0}, run}); }
  // Host: nothing of this stream that has an order leaves until it is let go.
  void hold(uint32_t thread) { inbox_.post({Notice::kHold, {thread, 0, 0}, 0}); }
  void let_go(uint32_t thread) { inbox_.post({Notice::kLetGo, {thread, 0, 0}, 0}); }
  // Host: programs that this thread dispatches are part of effects that are being replayed.
  void nest(uint32_t thread) { inbox_.post({Notice::kNest, {thread, 0, 0}, 0}); }
  // A loaded program, or one that may be, has no more use for a site.
  void release_site(uint64_t site);
  // Whether all records go to Python, also those that native code could format.
  void show_python(bool all) { builder_.show_python(all); }
  // Nothing drains any more: whatever still waits for an answer gets an error.
  void fail_replies(const std::string &why);

  // How many plain epochs have been opened: the number of the next one.
  uint32_t plain_opened() { return inbox_.next_epoch(kPlainThread); }

  // Leader: everything that can leave now. Waits for something to, but not longer than `patience` while programs are
  // running; for as long as it takes while none are.
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

  // The leader's own.
  ReleaseOrder order_;
  BatchBuilder builder_;
  Parking parking_;
  std::vector<uint32_t> late_; // numbers of replies that fail after the scan
  uint64_t scans_ = 0;         // that are over
  std::chrono::steady_clock::time_point last_batch_{};
};

} // namespace effects
