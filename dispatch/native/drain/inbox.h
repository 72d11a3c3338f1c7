// What the host tells the drain, in the order of its saying, and whether the drain must be woken for it.
//
// Any thread may call everything but read() and try_to_sleep(), which are the leader's.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../order/parked.h"
#include "wake_up.h"

namespace effects {

struct Notice {
  enum What { kOpen, kFail, kLose, kForget, kHold, kLetGo, kResume, kNest } what;
  EpochInfo info;
  uint64_t number; // of the dispatch that is opened; of the device that has failed
};

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

} // namespace effects
