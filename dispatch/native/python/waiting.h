// Python threads that wait for the drain.
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

  // Returns the results' bytes, or raises the error. Python's lock is free meanwhile, and interrupts are handled.
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
  std::shared_ptr<State> state_; // shared with the answering thread, since the waiting one may be interrupted
};

// The interval at which a waiting thread checks for signals.
inline constexpr std::chrono::milliseconds kSignalPatience{50};

// Waits until `done()`, which is called when epochs have ended; false if the time ran out. `timeout`: seconds, or None.
// `nested`: see WakeUp::begin_barrier().
//
// Python's lock is free meanwhile. Signals are handled, and the error of a handler is raised. Locks and counts are
// native here, because a handler may raise between any two steps of Python code: after a lock is taken, it would never
// be released.
bool WaitUntil(nanobind::object done, nanobind::object timeout, bool nested);

// From now on SIGINT only writes a byte to this file, in whatever thread it arrives; -1: restores the old handler. The
// main thread may wait in XLA, where it runs no Python handlers.
void InterruptsTo(int file);

} // namespace effects
