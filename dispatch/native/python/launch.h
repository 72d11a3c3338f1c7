// What keeps programs on several devices from waiting for each other: who may launch one, trace, or must wait.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <deque>
#include <utility>

#include "call.h"

namespace effects {

namespace nb = nanobind;

// Holds one of Python's locks; none if it is None.
class PyLockGuard {
public:
  explicit PyLockGuard(nb::object lock) : lock_(std::move(lock)) {
    static PyObject *const name = PyUnicode_InternFromString("acquire");
    if (!lock_.is_none() && !CallMethod(lock_, name).is_valid()) throw nb::python_error(); // it sees interrupts
  }
  PyLockGuard(const PyLockGuard &) = delete;
  ~PyLockGuard() {
    if (lock_.is_none()) return;
    // Who was called may have given it back; see `begin_trace`. Then there is nothing to release.
    static PyObject *const name = PyUnicode_InternFromString("release");
    if (!CallMethod(lock_, name).is_valid()) PyErr_Clear();
  }

private:
  const nb::object lock_;
};

// While one lives, tracing a function of the user's raises `WouldTrace` in the calling thread, or does not.
class TracingForbidden {
public:
  explicit TracingForbidden(bool forbidden) { here_ = forbidden; }
  TracingForbidden(const TracingForbidden &) = delete;
  ~TracingForbidden() { here_ = before_; }

  // Whether it is to; afterwards it is not to.
  static bool take() { return std::exchange(here_, false); }

private:
  inline static thread_local bool here_ = false;
  const bool before_ = here_;
};

// The output tokens of programs over several devices that may run, of all threads, the oldest first. Under Python's
// lock.
class InFlight {
public:
  void add(nb::handle output_token) { tokens_.push_back(nb::borrow(output_token)); }
  bool has_room(size_t most) const { return tokens_.size() < most; }
  // Waits until there is room, and then for half of them, since to wake a thread has its price.
  void make_room(size_t most);

private:
  std::deque<nb::object> tokens_;
};

// The process's own.
InFlight &in_flight();

} // namespace effects
