// Calls of jitted functions without Python code: the fast path of most calls.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stream.h"

namespace effects {

namespace nb = nanobind;

// Makes the calls that need neither raise nor wait before they run, and passes the others to `Dispatcher` in Python.
// All under Python's lock.
class QuickCalls {
public:
  // `elsewhere`: the result of a call that has done nothing. `clear_up`: called after an error. `state_of_calls`: JAX's
  // context variables and their values outside of traces and named axes, with jit enabled. `jax_tokens`: the tokens of
  // programs that JAX dispatched. `shared`: the stream of all threads.
  void configure(nb::object elsewhere, nb::object clear_up, nb::handle state_of_calls, nb::object jax_tokens,
                 nb::object shared);

  // The number of events that calls must check for: a failure, a setting, a fork. After an event all calls go to
  // `Dispatcher`, until one of them has checked and reports that it found nothing.
  //   1. A call reads the number, and finds no failures.
  //   2. A drain thread notes a failure, and then raises the number.
  //   3. The call reports that there was nothing at the number that it read. The number is another now, so the next
  //      calls check again.
  // If the call checked before it read the number, or the thread raised the number first, the call would report for a
  // number that counts a failure which it has not seen.
  void raise_attention() { ++attention_; }
  uint64_t attention() const { return attention_; }
  void lower_attention(uint64_t since) { nothing_since_ = since; }

  // Calls a `Dispatcher`: self(*args, **kwargs). `kwargs` may be null.
  nb::object call(nb::handle self, nb::handle args, nb::handle kwargs);

private:
  bool runs_now(size_t states) const;
  bool may_begin(const Stream &stream, const Caller &caller) const;
  nb::object call_plain(nb::handle self, Stream &stream, nb::handle caller, nb::handle plain, nb::handle args,
                        nb::handle kwargs);
  nb::object call_with_effects(nb::handle self, Stream &stream, nb::handle caller, nb::handle threaded, nb::handle args,
                               nb::handle kwargs);

  uint64_t attention_ = 1, nothing_since_ = 0;
  std::vector<std::pair<nb::object, nb::object>> state_of_calls_;
  nb::object elsewhere_, clear_up_, jax_tokens_, shared_;
};

// The instance of the process.
QuickCalls &quick_calls();

// The base type of `Dispatcher`.
nb::object QuickCallsType();

} // namespace effects
