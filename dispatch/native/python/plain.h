// Calls of programs without effects, where nothing else is to be done: the way that most calls of such a function take.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

namespace nb = nanobind;

// What is asked before each such call. All under Python's lock.
class PlainCalls {
public:
  // `elsewhere`: what a call returns that has done nothing. `runs_now`: whether no trace is under way. `failures`:
  // those that have not been raised. `this_thread`: knows whether the calling thread runs a callback. `several`:
  // whether programs may run on several devices.
  void configure(nb::object elsewhere, nb::object runs_now, nb::object failures, nb::object this_thread, bool several);

  // plain(*args, **kwargs), or `elsewhere` if something is to be done first.
  nb::object call(nb::handle plain, nb::tuple args, nb::dict kwargs) const;

private:
  bool is_quiet() const;

  nb::object elsewhere_, runs_now_, failures_, this_thread_;
  bool several_ = true;
};

// The process's own.
PlainCalls &plain_calls();

// f(token, *args, **kwargs), or without a token if there is none.
nb::object Call(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs);

} // namespace effects
