// The registered user handlers of custom calls, and their failures.
//
// Any thread may call everything here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace effects {

using UserHandler = XLA_FFI_Error *(*)(XLA_FFI_CallFrame *);

class Targets {
public:
  // A name keeps the handler that it has.
  void set(const std::string &name, const std::string &platform, UserHandler handler);
  // Null if there is none.
  UserHandler find(const std::string &name, const std::string &platform);

private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, UserHandler> handlers_; // guarded by mutex_; by name and platform
};

// A handler's error, and its call.
struct CustomCallFailure {
  uint64_t number;
  std::string target, where, message;
  int code;
};

// Failures that have not been taken. XLA's error text names them by number.
class CustomCallFailures {
public:
  // Returns its number.
  uint64_t add(CustomCallFailure failure);
  std::optional<CustomCallFailure> take(uint64_t number);

private:
  static constexpr size_t kKept = 1024;
  std::mutex mutex_; // guards all below
  uint64_t last_ = 0;
  std::deque<CustomCallFailure> failures_;
};

// The instance of the process.
Targets &targets();
CustomCallFailures &custom_call_failures();

} // namespace effects
