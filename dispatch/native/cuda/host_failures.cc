#include "host_failures.h"

#include <algorithm>
#include <utility>

#include "../xla/runtime.h"

namespace effects::cuda {

bool HostFailures::any() {
  std::lock_guard lock(mutex_);
  return !failures_.empty();
}

std::vector<HostFailure> HostFailures::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(failures_, {});
}

void HostFailures::note(const Span *token, const Said &said, const char *why) noexcept {
  try {
    Token lost{StreamOf(kUntrackedThread, 0), 0, 0, 0};
    try {
      if (token != nullptr) lost = LoadToken(*token).token;
    } catch (const std::exception &) { // it is none, as `why` says
    }
    const uint32_t thread = ThreadOf(lost);
    {
      std::lock_guard lock(mutex_);
      const std::pair<uint32_t, uint32_t> program{thread, lost.epoch};
      const bool is_known = std::find(failed_.begin(), failed_.end(), program) != failed_.end();
      if (!is_known && failures_.size() < kMost)
        failures_.push_back({thread, lost.epoch, std::string(said.before) + why + said.behind});
      if (!is_known && thread != kUntrackedThread) failed_.push_back(program);
      if (failed_.size() > kMost) failed_.pop_front();
    }
    // Only now: the program ends by this, and whoever waits for it asks what has failed.
    if (thread != kUntrackedThread) drain().fail(thread, lost.epoch);
    wake_up().wake_now();
  } catch (const std::exception &) { // there is no memory left
  }
}

HostFailures &host_failures() {
  static auto *const instance = new HostFailures();
  return *instance;
}

} // namespace effects::cuda
