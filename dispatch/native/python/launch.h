// The rules that keep programs on several devices from deadlock: which thread may launch, may trace, or must wait.
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
    if (!lock_.is_none() && !CallMethod(lock_, name).is_valid()) throw nb::python_error(); // may be interrupted
  }
  PyLockGuard(const PyLockGuard &) = delete;
  ~PyLockGuard() {
    if (lock_.is_none()) return;
    // The callee may have released it already: see `begin_trace`. Then the error is expected.
    static PyObject *const name = PyUnicode_InternFromString("release");
    if (!CallMethod(lock_, name).is_valid()) PyErr_Clear();
  }

private:
  const nb::object lock_;
};

// While one lives, tracing a user function raises `WouldTrace` in the calling thread if `forbidden`.
class TracingForbidden {
public:
  explicit TracingForbidden(bool forbidden) { here_ = forbidden; }
  TracingForbidden(const TracingForbidden &) = delete;
  ~TracingForbidden() { here_ = before_; }

  // Returns true if tracing is forbidden, and allows it.
  static bool take() { return std::exchange(here_, false); }

private:
  inline static thread_local bool here_ = false;
  const bool before_ = here_;
};

// The output tokens of all threads' programs over several devices that may still run, the oldest first. Under Python's
// lock.
class InFlight {
public:
  void add(nb::handle output_token) { tokens_.push_back(nb::borrow(output_token)); }
  bool has_room(size_t most) const { return tokens_.size() < most; }
  // Waits until there is room. Waits for the middle program, since a wake-up is expensive: it should make room for
  // several.
  void make_room(size_t most);

private:
  std::deque<nb::object> tokens_;
};

// The instance of the process.
InFlight &in_flight();

} // namespace effects
