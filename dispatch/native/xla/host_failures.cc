#include "host_failures.h"

#include <algorithm>
#include <utility>

#include "runtime.h"

namespace effects {

bool HostFailures::any() {
  std::lock_guard lock(mutex_);
  return is_being_taken_ || !failures_.empty() || !warnings_.empty();
}

void HostFailures::warn(std::string text) {
  std::lock_guard lock(mutex_);
  warnings_.push_back(std::move(text));
}

std::vector<std::string> HostFailures::take_warnings() {
  std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

bool HostFailures::has_failed(const Program &program) {
  std::lock_guard lock(mutex_);
  return std::any_of(failed_.begin(), failed_.end(),
                     [&](const Program &one) { return !(one < program) && !(program < one); });
}

std::vector<HostFailure> HostFailures::take() {
  std::lock_guard lock(mutex_);
  is_being_taken_ = true;
  return std::exchange(failures_, {});
}

void HostFailures::taken() {
  std::lock_guard lock(mutex_);
  is_being_taken_ = false;
}

void HostFailures::note(const Span *token, const Said &said, const char *why) noexcept {
  Program program{kPlainThread, 0};
  try {
    if (token != nullptr) {
      const Token lost = LoadToken(*token).token;
      program = {ThreadOf(lost), lost.epoch};
    }
  } catch (const std::exception &) { // the body's error, which `why` reports
  }
  const bool is_known = has_failed(program);
  try {
    std::lock_guard lock(mutex_);
    if (!is_known && failures_.size() < kMost)
      failures_.push_back({program.thread, program.epoch, std::string(said.before) + why + said.behind});
    if (!is_known && program.thread != kPlainThread) failed_.push_back(program);
    if (failed_.size() > kMost) failed_.pop_front();
  } catch (const std::exception &) { // no memory to report it
  }
  // Last: this ends the program, and whoever waits for it then looks for the failure.
  try {
    if (program.thread != kPlainThread) {
      FailProgram(program, why);
    }
    wake_up().wake_now();
  } catch (const std::exception &) { // no memory to end the program
  }
}

HostFailures &host_failures() {
  static auto *const instance = new HostFailures();
  return *instance;
}

} // namespace effects
