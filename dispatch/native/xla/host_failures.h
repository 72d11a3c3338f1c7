// Failures of host functions of a GPU's stream. XLA takes no error from them, so stream and program continue. The drain
// takes the failure and raises it for the program.
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

// The message, with the reason.
struct Said {
  const char *before, *behind;
};
inline constexpr Said kEffectLost{"An effect could not be published when its values had been copied from the device: ",
                                  " It is lost, and so are those after it in its program."};

// Of the program with this number; of an unknown program if the thread is `kPlainThread`.
struct HostFailure {
  uint32_t thread, epoch;
  std::string text;
};

class HostFailures {
public:
  // Runs `body`, which publishes. If it throws, its program fails, so that the order does not wait for it. `token`: the
  // program's, or null. Returns true if it did not throw.
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
  // A warning.
  void warn(std::string text);
  std::vector<std::string> take_warnings();
  // True if there are failures to take, or failures taken but not yet recorded.
  bool any();
  // True if this program has failed; its operations are then forgotten.
  bool has_failed(const Program &program);
  // The failures since the last call, one per program, the first. The caller then calls `taken` once it has recorded
  // them. One thread at a time.
  std::vector<HostFailure> take();
  void taken();

private:
  void note(const Span *token, const Said &said, const char *why) noexcept;

  static constexpr size_t kMost = 100; // the most failures kept until they are taken, and programs remembered
  std::mutex mutex_;                   // guards all below
  std::vector<HostFailure> failures_;
  std::vector<std::string> warnings_;
  bool is_being_taken_ = false;
  std::deque<Program> failed_; // failed programs, which continue: each of their devices may fail
};

// The instance of the process.
HostFailures &host_failures();

} // namespace effects
