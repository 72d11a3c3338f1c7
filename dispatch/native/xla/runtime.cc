#include "runtime.h"

namespace effects {
namespace {

constexpr char kStopped[] =
    "A callback with results did not run. The process ends, and nothing that is waited for is replayed any more. Call "
    "its program earlier, or register the exit handler that does after importing `effects`.";

} // namespace

WakeUp &wake_up() {
  static auto *const instance = new WakeUp();
  return *instance;
}
Publisher &publisher() {
  static auto *const instance = new Publisher(wake_up());
  return *instance;
}
Drain &drain() {
  static auto *const instance = new Drain(wake_up(), publisher(), sites(), replies());
  return *instance;
}
Progress &progress() {
  static auto *const instance = new Progress();
  return *instance;
}
Sites &sites() {
  static auto *const instance = new Sites();
  return *instance;
}
Listeners &listeners() {
  static auto *const instance = new Listeners();
  return *instance;
}
Replies &replies() {
  static auto *const instance = new Replies();
  return *instance;
}

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
