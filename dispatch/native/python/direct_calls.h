// Callbacks for which a program waits, one by one, on the shortest path to their answers.
//
// The speed of a program that waits in each step of a loop depends on this path, so its only Python frame is the
// function's own. The path takes a batch with a single call of a function that takes arrays, while the drain has
// nothing else to do. All other batches take the general path, in Python: this path must have the same results as
// `Drain` and `Replay`.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "../drain/batch.h"

namespace effects {

namespace nb = nanobind;

// All under Python's lock, which is released while the leader waits, and while a program continues in the leader's
// thread.
class DirectCalls {
public:
  // `host`: the `DirectCallsHost` of Python, with the state that this path reads and the work that it leaves to Python.
  // `patience_s`: the time after which an empty batch is returned.
  DirectCalls(nb::handle host, double patience_s);
  DirectCalls(const DirectCalls &) = delete;

  // Answers calls until a batch needs the general path, and returns this `Batch`; None if another thread leads now.
  // `wait_for_nested`: the function that waits for the programs that a callback in this thread has called. `nested`:
  // the open ones of these calls.
  nb::object next_batch(nb::object wait_for_nested, nb::dict nested);

  // From now on all calls take the general path.
  void close() { closed_ = true; }

private:
  struct Call;
  class Result;

  Batch take();
  bool is_clear();
  bool find(const Batch &batch, Call &call);
  bool answer(const Call &call, Batch &batch, nb::handle wait_for_nested, nb::handle nested);
  nb::object run(const Call &call, nb::handle wait_for_nested, nb::handle nested);
  void take_results(Result &result, const Call &call, nb::handle returned);
  bool take_leaves(Result &result, const Call &call, nb::handle returned);
  bool take_leaf(Result &result, nb::handle expected, nb::handle leaf);
  std::string fail(const Call &call, nb::python_error &error, nb::handle wait_for_nested);

  const double patience_s_;
  bool closed_ = false;
  int until_look_;
  uint64_t clear_since_ = 0; // the value of attention() when nothing was found
  // From the host.
  nb::object stream_of_, site_of_, start_thread_, look_, take_results_, fail_, clear_frames_;
  nb::object is_clear_, programs_, frames_;
  nb::dict runs_, running_;
  nb::object array_type_; // NumPy's
  // Names of attributes.
  nb::object eager_, calls_, direct_call_, dtype_, shape_, copy_, run_;
};

} // namespace effects
