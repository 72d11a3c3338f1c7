// The drain's wake-ups, and its lead.
//
// One thread leads: it takes batches and replays them. While the leader runs a function of the user, it offers the
// lead. Mostly it is back in a moment, so a standby thread takes the lead only after a while, or at once if the offer
// is urgent: the function waits for the drain, or a device does that the function may wait for.
//
// Any thread may call a function that is not marked as a drain thread's or the leader's.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace effects {

// The drain's progress, for host threads that wait.
//
// Any thread may call everything here.
class Progress {
public:
  // The drain: epochs have ended, `plain` of them plain ones, or a run has, or an epoch has progressed.
  void advance(uint32_t plain) {
    {
      std::lock_guard lock(mutex_);
      plain_ended_ += plain;
      ++steps_;
    }
    advanced_.notify_all();
  }

  // True if this many plain epochs have ended.
  bool plain_has_ended(uint32_t count) {
    std::lock_guard lock(mutex_);
    return static_cast<int32_t>(plain_ended_ - count) >= 0;
  }

  // The number of the drain's steps. A waiting thread reads it first and then looks. The other way round:
  //   1. A thread looks: the event has not happened.
  //   2. The event happens, and the drain makes a step.
  //   3. The thread reads the number of steps, and waits for one more, which may never come.
  uint64_t steps() {
    std::lock_guard lock(mutex_);
    return steps_;
  }
  // Waits until the drain has made more steps than that, or until the time is up.
  void wait_beyond(uint64_t steps, std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    advanced_.wait_until(lock, deadline, [&] { return steps_ != steps; });
  }

private:
  std::mutex mutex_; // guards all below
  std::condition_variable advanced_;
  uint64_t steps_ = 0;
  uint32_t plain_ended_ = 0; // wraps around at 2^32, as the numbers of epochs do
};

class WakeUp {
public:
  WakeUp() = default;
  WakeUp(const WakeUp &) = delete;

  // There will be something to do: wakes a leader that sleeps.
  void set_work_pending();
  // A thread waits for the drain: wakes a leader that sleeps or pauses.
  void wake_now();
  // The function that the leader runs waits for the drain, or for a device that does: a standby thread takes the offer
  // at once, even if the leader makes it later.
  void set_offer_urgent();

  // The threads of the drain end once all published records are replayed. Nothing is drained after that.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // A barrier begins or ends: a thread waits for records to be released. `nested`: it is in a user function that a
  // drain thread runs.
  void begin_barrier(bool nested);
  void end_barrier() { barriers_.fetch_sub(1, std::memory_order_relaxed); }
  bool has_barriers() const { return barriers_.load(std::memory_order_relaxed) > 0; }

  // Drain threads: the lead.

  // Waits until no thread leads, or until the lead has been on offer for long enough; then the calling thread leads.
  // False: the thread may end.
  bool stand_by();
  // Leader: offers the lead. Returns the number of standby threads.
  int offer();
  // Takes the offer back. False if another thread leads by now.
  bool reclaim();
  // Gives up the lead.
  void leave();

  // Leader: waiting.

  // Until `deadline`, unless somebody waits for the drain. Resets urgency, since the leader looks now.
  void pace(std::chrono::steady_clock::time_point deadline);
  // For `time`, unless somebody comes to wait.
  void pause_for(std::chrono::microseconds time);
  // Until there is something to do. Returns true if it was woken before the time ran out.
  bool sleep(std::chrono::milliseconds time);

  // For tests.
  bool offer_is_urgent();

private:
  // A standby thread takes an offer of this age, and sleeps after this many looks without an offer.
  static constexpr std::chrono::milliseconds kOfferPatience{1};
  static constexpr int kQuietLooks = 16;
  static constexpr int kEnoughStandingBy = 2;

  void wake(bool &reason);
  void lead(); // with `mutex_` held: makes the calling thread the leader

  std::atomic<bool> stopped_{false};
  std::atomic<int> barriers_{0};

  std::mutex mutex_; // guards all below
  std::condition_variable leader_wakes_;
  bool work_pending_ = false;
  bool wake_now_ = false;

  std::condition_variable stand_by_wakes_;
  bool led_ = false;
  std::thread::id leader_;
  bool offered_ = false;
  bool offer_urgent_ = false;
  uint64_t offers_ = 0;
  bool asleep_ = false; // standby threads sleep until there is an offer
  int standing_by_ = 0;
};

} // namespace effects
