// What goes wrong in host functions, whose stream and program go on: XLA takes no error from there.
//
// Any thread may call everything here.
#pragma once

#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "../producer/bytes.h"

namespace effects::cuda {

class HostFailures {
public:
  // Runs `body`, which publishes. If it throws, a record is lost: its program's order does not wait for it, and the
  // next handler says so. `token`: the program's; null: it has none. Returns whether it did not throw.
  template <typename Body>
  bool run(const Span *token, Body &&body) noexcept {
    try {
      body();
      return true;
    } catch (const std::exception &error) {
      note(token, error.what());
      return false;
    }
  }
  // What the first of them said since the last call.
  std::optional<std::string> take();

private:
  void note(const Span *token, const char *why) noexcept;

  std::mutex mutex_;
  std::optional<std::string> first_; // guarded by mutex_
};

// The process's own.
HostFailures &host_failures();

} // namespace effects::cuda
