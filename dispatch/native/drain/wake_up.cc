#include "wake_up.h"

#include <utility>

namespace effects {

void WakeUp::set_work_pending() { wake(work_pending_); }
void WakeUp::wake_now() { wake(wake_now_); }

// While the lead is offered no thread is notified, and no wake-up is lost by that:
//   1. The leader offers the lead and runs a function.
//   2. A producer sets `wake_now_`, sees the offer, and notifies no thread.
//   3. The leader takes the offer back, or another thread takes it, and calls pace().
//   4. pace() looks at `wake_now_` before it waits, under the same mutex, and does not wait.
void WakeUp::wake(bool &reason) {
  {
    std::lock_guard lock(mutex_);
    reason = true;
    if (offered_) return;
  }
  leader_wakes_.notify_one();
}

void WakeUp::set_offer_urgent() {
  {
    std::lock_guard lock(mutex_);
    wake_now_ = offer_urgent_ = true;
  }
  leader_wakes_.notify_one();
  stand_by_wakes_.notify_all();
}

void WakeUp::stop() {
  stopped_.store(true, std::memory_order_relaxed);
  wake_now();
  std::lock_guard lock(mutex_);
  stand_by_wakes_.notify_all();
}

void WakeUp::begin_barrier(bool nested) {
  barriers_.fetch_add(1, std::memory_order_relaxed);
  nested ? set_offer_urgent() : wake_now();
}

void WakeUp::lead() {
  led_ = true;
  offered_ = false;
  offer_urgent_ = false;
  leader_ = std::this_thread::get_id();
}

bool WakeUp::stand_by() {
  std::unique_lock lock(mutex_);
  if (led_ && standing_by_ >= kEnoughStandingBy) return false;
  ++standing_by_;
  for (int quiet = 0;;) {
    const bool take_offer = offered_ && offer_urgent_;
    if (!led_ || take_offer) break;
    if (stopped()) {
      --standing_by_;
      return false;
    }
    const uint64_t offers = offers_;
    const auto wanted = [&] { return !led_ || stopped() || (offered_ && offer_urgent_); };
    if (quiet < kQuietLooks) {
      stand_by_wakes_.wait_for(lock, kOfferPatience, wanted);
      if (offered_ && offers == offers_) offer_urgent_ = true; // still the same offer
      quiet = offers == offers_ ? quiet + 1 : 0;
    } else {
      asleep_ = true;
      stand_by_wakes_.wait(lock, [&] { return wanted() || !asleep_; });
      quiet = 0;
    }
  }
  --standing_by_;
  lead();
  return true;
}

int WakeUp::offer() {
  std::lock_guard lock(mutex_);
  offered_ = true;
  ++offers_;
  if (std::exchange(asleep_, false) || offer_urgent_) stand_by_wakes_.notify_all();
  return standing_by_;
}

bool WakeUp::reclaim() {
  std::lock_guard lock(mutex_);
  if (!offered_ || leader_ != std::this_thread::get_id()) return false;
  lead();
  return true;
}

void WakeUp::leave() {
  std::lock_guard lock(mutex_);
  led_ = false;
  stand_by_wakes_.notify_all();
}

void WakeUp::pace(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  leader_wakes_.wait_until(lock, deadline, [&] { return wake_now_ || has_barriers(); });
  wake_now_ = offer_urgent_ = false;
}

void WakeUp::pause_for(std::chrono::microseconds time) {
  std::unique_lock lock(mutex_);
  leader_wakes_.wait_for(lock, time, [&] { return wake_now_; });
  wake_now_ = false;
}

bool WakeUp::sleep(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  const bool woken = leader_wakes_.wait_for(lock, time, [&] { return work_pending_ || wake_now_; });
  if (woken) work_pending_ = false;
  return woken;
}

bool WakeUp::offer_is_urgent() {
  std::lock_guard lock(mutex_);
  return offer_urgent_;
}

} // namespace effects
