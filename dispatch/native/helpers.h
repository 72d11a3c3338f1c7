// Threads that run what may block where its own thread must not.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace effects {

// Each job begins at once, in a thread of its own, which takes another job when it is done. The threads live as long as
// the process, and so must this.
class Helpers {
public:
  void run(std::function<void()> job) {
    {
      std::lock_guard lock(mutex_);
      if (jobs_.size() < idle_) {
        jobs_.push_back(std::move(job));
        came_.notify_one();
        return;
      }
    }
    try {
      std::thread([this, job] { work(job); }).detach();
    } catch (const std::system_error &) {
      job(); // there can be no more threads
    }
  }

private:
  void work(std::function<void()> job) {
    for (;;) {
      job();
      std::unique_lock lock(mutex_);
      ++idle_;
      came_.wait(lock, [&] { return !jobs_.empty(); });
      --idle_;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
  }

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> jobs_; // for threads that are idle: never more than these
  size_t idle_ = 0;
};

} // namespace effects
