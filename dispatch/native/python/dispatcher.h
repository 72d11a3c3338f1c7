// Calls of jitted functions without Python code. Most calls are such.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>
#include <vector>

#include "stream.h"

namespace effects {

namespace nb = nanobind;

// Makes the calls before which nothing has to be raised or waited for, and passes the others on to `Dispatcher` in
// Python. All under Python's lock.
class QuickCalls {
public:
  // What is asked before each call, of Python objects; see `_configure` in dispatcher.py. Until then all calls are
  // `Dispatcher`'s. With None they are again.
  void configure(nb::object call_config);

  // self(*args, **kwargs), of a `Dispatcher`; `kwargs` may be null.
  nb::object call(nb::handle self, nb::handle args, nb::handle kwargs);

private:
  bool runs_now() const;
  bool is_quiet() const;
  Stream *stream_here() const;
  nb::object call_plain(nb::handle self, nb::handle plain, nb::handle args, nb::handle kwargs);
  nb::object call_with_effects(nb::handle self, Stream &stream, nb::handle caller, nb::handle threaded, nb::handle args,
                               nb::handle kwargs);

  bool configured_ = false;
  bool several_ = true;  // whether programs may run on several devices
  nb::object elsewhere_; // what a call returns that has done nothing
  // What has which `value` where no trace is under way, nor jit disabled.
  std::vector<std::pair<nb::object, nb::object>> state_of_calls_;
  nb::object settings_;                     // of the user's
  nb::object jax_tokens_;                   // has those of programs that JAX dispatched
  nb::object failures_, log_capacity_needed_, orders_; // as `Dispatcher` sees them; the first two are empty mostly
  nb::object clear_up_;                     // what is done after an error
};

// The process's own.
QuickCalls &quick_calls();

// The type that `Dispatcher` is derived from.
nb::object QuickCallsType();

} // namespace effects
