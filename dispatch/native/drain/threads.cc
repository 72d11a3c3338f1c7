#include "threads.h"

#include <system_error>
#include <thread>
#include <utility>

namespace effects {

Threads::~Threads() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  come_.notify_all();
  gone_.wait(lock, [&] { return count_ == 0; });
}

void Threads::run(std::function<void()> work) {
  if (!hand_over(work)) work();
}

bool Threads::hand_over(std::function<void()> &work) {
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

void Threads::serve() {
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

} // namespace effects
