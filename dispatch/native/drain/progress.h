// How far the drain is, for threads of the host that wait for that.
//
// Any thread may call everything here.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace effects {

class Progress {
public:
  // The drain: epochs have ended, or untracked records have been replayed, so many by now.
  void advance(uint64_t untracked_released) {
    {
      std::lock_guard lock(mutex_);
      untracked_released_ = std::max(untracked_released_, untracked_released);
      ++steps_;
    }
    advanced_.notify_all();
  }

  uint64_t untracked_released() {
    std::lock_guard lock(mutex_);
    return untracked_released_;
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
  uint64_t untracked_released_ = 0;
};

} // namespace effects
