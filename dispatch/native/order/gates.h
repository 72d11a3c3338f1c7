// Gates between programs: the call of a program that calls handlers of the user's returns at once, and the handlers of
// the next program of the same thread wait until it is over, whether it succeeds or fails.
//
// XLA keeps a thread of its own for a program that waits, and has only so many. Without further care:
//   1. Program A is dispatched, and program B, which waits for A.
//   2. XLA begins with B, which takes the last thread.
//   3. A never begins: a deadlock.
// So B is dispatched when A has begun on all its devices, which is when it has come to its own gate there.
//
// Any thread may call everything here. What waits goes on with no lock held and in a thread of its own, since it runs
// the rest of its program.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "../drain/threads.h"

namespace effects {

class Gates {
public:
  using GoOn = std::function<void()>;

  // A program of this thread has been called which calls handlers in these order domains. Who calls it looks afterwards
  // whether it is over: before this, open() does nothing.
  void shut(uint32_t thread, uint32_t epoch, std::vector<int64_t> domains);
  // It is over, or has failed.
  void open(uint32_t thread, uint32_t epoch);

  // One of the `devices` that run a program comes to the first handler in a domain, or to where it may come later; 0:
  // there is but one. Calls `go_on` when no earlier program of the thread's is left that calls handlers in this domain:
  // at once, or later and in another thread.
  void pass(uint32_t thread, uint32_t epoch, uint32_t devices, int64_t domain, GoOn go_on);

  // Waits until all programs of the thread that have a gate have begun, for so long at most. Returns whether they have.
  bool wait_for_begun(uint32_t thread, std::chrono::milliseconds patience);

  // Whether there is any program that is not over.
  bool any() const { return any_.load(std::memory_order_seq_cst) != 0; }

private:
  struct Program {
    std::vector<int64_t> domains; // in which it calls handlers; none: its call has not returned
    size_t came = 0;              // how many devices have come to a gate of it
    size_t devices = 1;
    bool has_begun() const { return came >= devices * domains.size(); }
  };
  struct Waiting {
    uint32_t epoch;
    int64_t domain;
    GoOn go_on;
  };
  struct OfThread {
    std::map<uint32_t, Program> programs; // by epoch
    std::vector<Waiting> waiting;
    bool must_wait(uint32_t epoch, int64_t domain) const;
  };
  Program &find_or_add(OfThread &of_thread, uint32_t epoch); // with `mutex_` held

  std::atomic<size_t> any_{0}; // how many programs there are
  std::mutex mutex_;           // guards all below
  std::condition_variable begun_;
  std::map<uint32_t, OfThread> by_thread_;
  Threads threads_; // last, since what they run uses all above until they have ended
};

} // namespace effects
