// Custom calls of the user's: which handlers there are, and what has failed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handlers.h"

struct XLA_FFI_CallFrame;
struct XLA_FFI_Error;

namespace effects {

using UserHandler = XLA_FFI_Error *(*)(XLA_FFI_CallFrame *);

// The handlers that users have registered.
class Targets {
public:
  // Returns whether the name has this handler now; not so if it has another.
  bool set(const std::string &name, const std::string &platform, UserHandler handler) {
    std::lock_guard lock(mutex_);
    return handlers_.try_emplace({name, platform}, handler).first->second == handler;
  }
  UserHandler find(const std::string &name, const std::string &platform) {
    std::lock_guard lock(mutex_);
    const auto it = handlers_.find({name, platform});
    return it == handlers_.end() ? nullptr : it->second;
  }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    std::lock_guard lock(mutex_);
    for (const auto &[key, handler] : handlers_)
      if (names.empty() || names.back() != key.first) names.push_back(key.first);
    return names;
  }

private:
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, UserHandler> handlers_; // by name and platform
};

// What a handler's error said, and whose.
struct CustomCallFailure {
  uint64_t number;
  std::string target, where, message;
  int code;
};

// Failures that nobody has taken. XLA's error text names them by number.
class CustomCallFailures {
public:
  uint64_t add(CustomCallFailure failure) {
    std::lock_guard lock(mutex_);
    failure.number = ++last_;
    failures_.push_back(std::move(failure));
    if (failures_.size() > kKept) failures_.pop_front(); // nobody asked for it
    return last_;
  }
  std::optional<CustomCallFailure> take(uint64_t number) {
    std::lock_guard lock(mutex_);
    for (auto it = failures_.begin(); it != failures_.end(); ++it)
      if (it->number == number) {
        std::optional<CustomCallFailure> failure = std::move(*it);
        failures_.erase(it);
        return failure;
      }
    return std::nullopt;
  }

private:
  static constexpr size_t kKept = 1024;
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::deque<CustomCallFailure> failures_;
};

Targets &targets();
CustomCallFailures &custom_call_failures();

// The type of what a loaded program keeps of each of its custom calls.
void *LoadedCallTypeId();
void *LoadedCallTypeInfo();

// The stages of the handler that calls the user's.
std::vector<Handler> CustomCallHandlers();

} // namespace effects
