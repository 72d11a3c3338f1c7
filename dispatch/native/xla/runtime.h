// The process's one drain with its parts, and the operations shared by handlers and Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../drain/drain.h"
#include "../drain/replies.h"
#include "../drain/sites.h"
#include "../drain/wake_up.h"
#include "../producer/device_token.h"
#include "../producer/publisher.h"

namespace effects {

// Never destroyed: XLA's threads may outlive the static objects of this library.
WakeUp &wake_up();
Publisher &publisher();
Drain &drain();
Progress &progress();
Sites &sites();
Replies &replies();

// Publishes an effect of a program that JAX dispatches, as an epoch of its own in the plain stream. No output is known
// for it, so Python formats its text.
void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count, uint16_t flags = 0,
                  uint32_t reply = 0);

// The program of these tokens will publish no more. `devices`: the number that run it; 0: this one only.
void PublishClose(const Span &tokens, const Token &first, int32_t device, uint32_t devices);

// Fails the reply of this number if the process is ending: then nothing is answered any more.
bool FailIfStopped(uint32_t reply);

// The error of a waiting device when another device of its program has failed, if the cause is unknown.
inline constexpr char kProgramFailed[] = "Another device of the program has failed.";

// Fails a program: the order does not wait for it any more, and extensions fail their parts of it.
void FailProgram(const Program &program, const std::string &why);
// The extensions' hooks, added when the module is loaded.
struct Listeners {
  std::vector<std::function<void(const Program &program, const std::string &why)>> when_program_fails;
  std::vector<std::function<void()>> when_stopped;
};
Listeners &listeners();

// A stage of a handler, as registered with XLA.
struct Handler {
  const char *target;
  const char *stage;
  void *function;
};

} // namespace effects
