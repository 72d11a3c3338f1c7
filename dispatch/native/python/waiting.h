// Threads of Python's that wait for the drain.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace effects {

// A thread of the host that waits for a callback's answer.
class HostReply {
public:
  HostReply();

  // Returns the results' bytes; raises what went wrong. Python's lock is free meanwhile, and interrupts are seen.
  nanobind::list wait();

  uint32_t number;

private:
  struct State {
    std::mutex mutex;
    std::condition_variable condition;
    bool done = false; // guarded by mutex, as are the others
    std::vector<std::string> results;
    std::string error;
  };
  std::shared_ptr<State> state_; // shared with the thread that answers, since the one that waits may be interrupted
};

// A thread that waits looks so often whether a signal has come.
inline constexpr std::chrono::milliseconds kSignalPatience{50};

// Waits until `done()`, which is asked when epochs have ended; false if the time ran out.
// `timeout`: seconds, or None. `nested`: see WakeUp::begin_barrier().
//
// Python's lock is free meanwhile. A signal is seen, and what its handler raises is raised. All that this holds and
// counts is native, because a signal's handler may raise between any two steps of Python code: one that has just taken
// a lock would never give it back.
bool WaitUntil(nanobind::object done, nanobind::object timeout, bool nested);

// From now on SIGINT writes a byte to this file and does nothing else, whichever thread it comes to; -1: it does what
// it did before. The main thread may wait in XLA, where it runs no handler of Python's.
void InterruptsTo(int file);

} // namespace effects
