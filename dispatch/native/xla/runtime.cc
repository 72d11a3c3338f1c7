#include "runtime.h"

namespace effects {
namespace {

constexpr char kStopped[] =
    "A callback with results did not run. The process ends, and nothing that is waited for is replayed any more. Call "
    "its program earlier, or register the exit handler that does after importing `effects`.";

// The process's one object of a type.
template <typename T, typename... Args>
T &Only(Args &...args) {
  static auto *const instance = new T(args...);
  return *instance;
}

} // namespace

WakeUp &wake_up() { return Only<WakeUp>(); }
Publisher &publisher() { return Only<Publisher>(wake_up()); }
Drain &drain() { return Only<Drain>(wake_up(), publisher(), sites(), replies()); }
Progress &progress() { return Only<Progress>(); }
Sites &sites() { return Only<Sites>(); }
Listeners &listeners() { return Only<Listeners>(); }
Replies &replies() { return Only<Replies>(); }

void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count, uint16_t flags,
                  uint32_t reply) {
  publisher().throw_if_refused();
  Token token{StreamOf(kPlainThread, 0), drain().open(kPlainThread, /*sink=*/0), 0, 0};
  try {
    publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, token, device, spans, count, flags, reply);
    if (ordered) ++token.index;
    PublishClose({&token, sizeof token}, token, device, /*devices=*/1);
  } catch (...) {
    drain().fail(kPlainThread, token.epoch);
    throw;
  }
}

void PublishClose(const Span &tokens, const Token &first, int32_t device, uint32_t devices) {
  publisher().publish(Kind::kClose, devices, first, device, &tokens, 1);
  if (wake_up().has_barriers()) wake_up().wake_now();
}

void FailProgram(const Program &program, const std::string &why) {
  for (const auto &listener : listeners().when_program_fails) listener(program, why);
  drain().fail(program.thread, program.epoch);
}

bool FailIfStopped(uint32_t reply) {
  if (reply == 0 || !wake_up().stopped()) return false;
  replies().fail(reply, kStopped);
  return true;
}

} // namespace effects
