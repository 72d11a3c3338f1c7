#include "targets.h"

namespace effects {

void Targets::set(const std::string &name, const std::string &platform, UserHandler handler) {
  std::lock_guard lock(mutex_);
  handlers_.try_emplace({name, platform}, handler);
}

UserHandler Targets::find(const std::string &name, const std::string &platform) {
  std::lock_guard lock(mutex_);
  const auto it = handlers_.find({name, platform});
  return it == handlers_.end() ? nullptr : it->second;
}

uint64_t CustomCallFailures::add(CustomCallFailure failure) {
  std::lock_guard lock(mutex_);
  failure.number = ++last_;
  failures_.push_back(std::move(failure));
  if (failures_.size() > kKept) failures_.pop_front(); // the oldest, which was never taken
  return last_;
}

std::optional<CustomCallFailure> CustomCallFailures::take(uint64_t number) {
  std::lock_guard lock(mutex_);
  for (auto it = failures_.begin(); it != failures_.end(); ++it)
    if (it->number == number) {
      std::optional<CustomCallFailure> failure = std::move(*it);
      failures_.erase(it);
      return failure;
    }
  return std::nullopt;
}

Targets &targets() {
  static auto *const instance = new Targets();
  return *instance;
}

CustomCallFailures &custom_call_failures() {
  static auto *const instance = new CustomCallFailures();
  return *instance;
}

} // namespace effects
