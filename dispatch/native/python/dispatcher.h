// Calls of jitted functions without Python code. Most calls are such.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stream.h"

namespace effects {

namespace nb = nanobind;

// Makes the calls before which nothing has to be raised or waited for, and passes the others on to `Dispatcher` in
// Python. All under Python's lock.
class QuickCalls {
public:
  // `elsewhere`: what a call returns that has done nothing. `clear_up`: what is called after an error.
  // `state_of_calls`: what has which `value` where no trace is under way, in no axis, nor jit disabled. `jax_tokens`:
  // has those of programs that JAX dispatched. `shared`: the stream of all threads.
  void configure(nb::object elsewhere, nb::object clear_up, nb::handle state_of_calls, nb::object jax_tokens,
                 nb::object shared);

  // How often something has come up that each call may have to look at: a failure, a setting, a fork. All calls are
  // `Dispatcher`'s until one of them has looked and says that it has found nothing.
  //   1. A call reads the number, and finds no failures.
  //   2. A drain thread notes a failure, and then raises the number.
  //   3. The call says that there was nothing when the number was what it has read. It is another one now, so that the
  //      next calls look as well.
  // If the call looked before it read the number, or the thread raised the number first, the call would speak for a
  // number that counts a failure which it has not seen.
  void raise_attention() { ++attention_; }
  uint64_t attention() const { return attention_; }
  void lower_attention(uint64_t since) { nothing_since_ = since; }

  // self(*args, **kwargs), of a `Dispatcher`; `kwargs` may be null.
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

// The process's own.
QuickCalls &quick_calls();

// The type that `Dispatcher` is derived from.
nb::object QuickCallsType();

} // namespace effects
