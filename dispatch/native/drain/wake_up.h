// How the drain is woken, and which of its threads leads.
//
// One thread leads: it takes batches and replays them. While it runs a function of the user's it offers the lead. It is
// back in a moment mostly, so that a thread which stands by takes the lead after a while only, or at once if somebody
// says that the offer is urgent: the function waits for the drain itself, or a device does that the function may wait
// for.
//
// Any thread may call what is not said to be a drain thread's or the leader's.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace effects {

// How far the drain is, for threads of the host that wait for that.
//
// Any thread may call everything here.
class Progress {
public:
  // The drain: epochs have ended, so many of them plain ones, or a run, or an epoch has come further.
  void advance(uint32_t plain) {
    {
      std::lock_guard lock(mutex_);
      plain_ended_ += plain;
      ++steps_;
    }
    advanced_.notify_all();
  }

  // Whether so many plain epochs have ended.
  bool plain_has_ended(uint32_t count) {
    std::lock_guard lock(mutex_);
    return static_cast<int32_t>(plain_ended_ - count) >= 0;
  }

  // How often the drain has advanced. Who waits for something asks this first and looks then. The other way round:
  //   1. A thread looks: what it waits for has not come.
  //   2. It comes, and the drain advances.
  //   3. The thread asks for the number of steps, and waits for one more, which may never come.
  uint64_t steps() {
    std::lock_guard lock(mutex_);
    return steps_;
  }
  // Waits until the drain has advanced more often than that, or until the time is up.
  void wait_beyond(uint64_t steps, std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    advanced_.wait_until(lock, deadline, [&] { return steps_ != steps; });
  }

private:
  std::mutex mutex_; // guards all below
  std::condition_variable advanced_;
  uint64_t steps_ = 0;
  uint32_t plain_ended_ = 0; // it begins anew after 2^32, as the numbers of epochs do
};

class WakeUp {
public:
  WakeUp() = default;
  WakeUp(const WakeUp &) = delete;

  // There is something to do, in a while: wakes a leader that sleeps.
  void set_work_pending();
  // A thread waits for the drain: wakes a leader that sleeps or pauses.
  void wake_now();
  // The function that the leader runs waits for the drain, or for a device that waits for it: a thread that stands by
  // takes the offer at once, also if the leader makes it only later.
  void set_offer_urgent();

  // The threads of the drain end once all that has been published is replayed. Nothing is drained after that.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

  // A thread waits for records to leave, from its begin to its end. `nested`: it is a function of the user's that a
  // drain thread runs.
  void begin_barrier(bool nested);
  void end_barrier() { barriers_.fetch_sub(1, std::memory_order_relaxed); }
  bool has_barriers() const { return barriers_.load(std::memory_order_relaxed) > 0; }

  // Drain threads: the lead.

  // Waits until no thread leads, or until the leader has offered the lead and is busy for long enough; then the calling
  // thread leads. False: the thread may end.
  bool stand_by();
  // Leader: it is about to do something else. Returns how many threads stand by.
  int offer();
  // It has done it. False if another thread leads by now.
  bool reclaim();
  // It leads no more.
  void leave();

  // Leader: waiting.

  // Until `deadline`, unless somebody waits for the drain. What was urgent so far no longer is: the leader looks now.
  void pace(std::chrono::steady_clock::time_point deadline);
  // For so long, unless somebody comes to wait.
  void pause_for(std::chrono::microseconds time);
  // Until there is something to do.
  // Returns whether something has woken it before the time ran out.
  bool sleep(std::chrono::milliseconds time);

  // For tests.
  bool offer_is_urgent();

private:
  // A thread that stands by takes an offer that is this old, and sleeps when it has seen none for so many looks.
  static constexpr std::chrono::milliseconds kOfferPatience{1};
  static constexpr int kQuietLooks = 16;
  static constexpr int kEnoughStandingBy = 2;

  void wake(bool &reason);
  void lead(); // with `mutex_` held: the calling thread does

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
  bool asleep_ = false; // those that stand by sleep until there is an offer
  int standing_by_ = 0;
};

} // namespace effects
