// How far the drain is, for threads of the host that wait for that.
//
// Any thread may call everything here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace effects {

class Progress {
public:
  // The drain: epochs have ended, so many of them plain ones.
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

} // namespace effects
