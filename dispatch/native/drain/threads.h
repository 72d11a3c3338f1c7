// Threads that run things which may wait for each other: each has one for itself.
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
  // For tests; the process's own is never destroyed, since what runs may never end.
  ~Threads();

  // Any thread: runs this, in a thread that does nothing else meanwhile. If none can be made: in the calling one.
  void run(std::function<void()> work);

private:
  bool hand_over(std::function<void()> &work);
  void serve();

  std::mutex mutex_; // guards all below
  std::condition_variable come_, gone_;
  std::deque<std::function<void()>> work_;
  size_t idle_ = 0; // threads that run nothing, or are about to take some of `work_`
  size_t count_ = 0;
  bool ending_ = false;
};

} // namespace effects
