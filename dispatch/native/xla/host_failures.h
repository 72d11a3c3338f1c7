// What goes wrong in host functions, whose stream and program go on: XLA takes no error from there. The drain takes
// it, and raises it for the program.
//
// Any thread may call everything here.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../producer/bytes.h"
#include "../producer/device_token.h"

namespace effects {

// The text around the reason.
struct Said {
  const char *before, *behind;
};
inline constexpr Said kEffectLost{"An effect could not be published when its values had been copied from the device: ",
                                  " It is lost, and so are those after it in its program."};

// Of the program with this number; of no known program if the thread is `kPlainThread`.
struct HostFailure {
  uint32_t thread, epoch;
  std::string text;
};

class HostFailures {
public:
  // Runs `body`, which publishes. If it throws, its program fails: nothing more of its order is waited for. `token`:
  // the program's; null: it has none. Returns whether it did not throw.
  template <typename Body>
  bool run(const Span *token, const Said &said, Body &&body) noexcept {
    try {
      body();
      return true;
    } catch (const std::exception &error) {
      note(token, said, error.what());
      return false;
    }
  }
  // Something to say that fails nothing.
  void warn(std::string text);
  std::vector<std::string> take_warnings();
  // Whether there is something to take, or somebody who has taken it is not done with it.
  bool any();
  // Whether this program has failed, and what it started is forgotten.
  bool has_failed(const Program &program);
  // What has come since the last call, of each program the first. Who takes it says when it is `taken`: the failures
  // can be found elsewhere then. One thread at a time.
  std::vector<HostFailure> take();
  void taken();

private:
  void note(const Span *token, const Said &said, const char *why) noexcept;

  static constexpr size_t kMost = 100; // that are kept until they are taken, and programs that are remembered
  std::mutex mutex_;                   // guards all below
  std::vector<HostFailure> failures_;
  std::vector<std::string> warnings_;
  bool is_being_taken_ = false;
  std::deque<Program> failed_; // programs that were noted, which go on: each of their devices may fail
};

// The process's own.
HostFailures &host_failures();

} // namespace effects
