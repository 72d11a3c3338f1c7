// The process's one drain and what belongs to it, and what handlers and Python both do with it.
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

// Publishes an effect of a program that JAX dispatches, as an epoch of its own in the plain stream. The host does not
// say which output it goes to, so that Python formats its text.
void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count, uint16_t flags = 0,
                  uint32_t reply = 0);

// The program whose tokens these are has published all it will. `devices`: how many run it; 0: this one.
void PublishClose(const Span &tokens, const Token &first, int32_t device, uint32_t devices);

// When the process ends nothing is answered any more: fails the reply of this number then.
bool FailIfStopped(uint32_t reply);

// Why what waits fails when another device of its program has, if that is all that is known.
inline constexpr char kProgramFailed[] = "Another device of the program has failed.";

// The program fails: nothing more of its order is waited for, and what extensions have of it fails too.
void FailProgram(const Program &program, const std::string &why);
// What extensions do besides. They add it when the module is loaded.
struct Listeners {
  std::vector<std::function<void(const Program &program, const std::string &why)>> when_program_fails;
  std::vector<std::function<void()>> when_stopped;
};
Listeners &listeners();

// A stage of a handler, as XLA is told of it.
struct Handler {
  const char *target;
  const char *stage;
  void *function;
};

} // namespace effects
