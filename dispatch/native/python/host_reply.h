// A thread of the host that waits for a callback's answer.
#pragma once

#include <nanobind/nanobind.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace effects {

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

} // namespace effects
