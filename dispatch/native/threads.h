// Threads that run things which may wait for each other: each has one for itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace effects {

class Threads {
public:
  Threads() = default;
  Threads(const Threads &) = delete;
  // For tests; the process's own is never destroyed, since what runs may never end.
  ~Threads() {
    std::unique_lock lock(mutex_);
    ending_ = true;
    come_.notify_all();
    gone_.wait(lock, [&] { return count_ == 0; });
  }

  // Runs this, in a thread that does nothing else meanwhile. If none can be made: in the calling one.
  void run(std::function<void()> work) {
    if (!hand_over(work)) work();
  }

private:
  bool hand_over(std::function<void()> &work) {
    std::lock_guard lock(mutex_);
    if (idle_ == work_.size()) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error &) {
        return false;
      }
      ++count_;
      ++idle_;
    }
    work_.push_back(std::move(work));
    come_.notify_one();
    return true;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      come_.wait(lock, [&] { return ending_ || !work_.empty(); });
      if (work_.empty()) break;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      --idle_;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      ++idle_;
    }
    if (--count_ == 0) gone_.notify_all();
  }

  std::mutex mutex_; // guards all below
  std::condition_variable come_, gone_;
  std::deque<std::function<void()>> work_;
  size_t idle_ = 0; // threads that run nothing, or are about to take some of `work_`
  size_t count_ = 0;
  bool ending_ = false;
};

} // namespace effects
