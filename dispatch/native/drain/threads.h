// A pool for tasks that may wait for each other: each task has a thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace effects {

class Threads {
public:
  Threads() = default;
  Threads(const Threads &) = delete;
  // For tests. The process's pool is never destroyed, since a task may never end.
  ~Threads();

  // Any thread: runs a task in a thread of its own, or in the calling thread if none can be made.
  void run(std::function<void()> work);

private:
  bool hand_over(std::function<void()> &work);
  void serve();

  std::mutex mutex_; // guards all below
  std::condition_variable come_, gone_;
  std::deque<std::function<void()>> work_;
  size_t idle_ = 0; // threads that run nothing, or are about to take a task
  size_t count_ = 0;
  bool ending_ = false;
};

} // namespace effects
