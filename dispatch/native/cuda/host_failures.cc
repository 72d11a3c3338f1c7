#include "host_failures.h"

#include <utility>

#include "../xla/runtime.h"

namespace effects::cuda {

std::optional<std::string> HostFailures::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(first_, std::nullopt);
}

void HostFailures::note(const Span *token, const char *why) noexcept {
  try {
    {
      std::lock_guard lock(mutex_);
      if (!first_)
        first_ = std::string("An effect of an earlier program was lost: ") + why +
                 " It was copied from a device, and could " +
                 "not be published. Effects after it in its program are lost too.";
    }
    if (token == nullptr) return;
    const Token lost = LoadToken(*token).token; // what is none has said so
    drain().fail(ThreadOf(lost), lost.epoch);
  } catch (const std::exception &) { // there is no memory left, or no token
  }
}

HostFailures &host_failures() {
  static auto *const instance = new HostFailures();
  return *instance;
}

} // namespace effects::cuda
