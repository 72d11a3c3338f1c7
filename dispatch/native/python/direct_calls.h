// Callbacks for which a program waits, one by one, on the shortest path to their answers.
//
// A program that waits in each step of a loop goes as fast as this path is short. So the only Python frame on it is the
// function's own. It is for a batch that holds nothing but the call, a function that is called once with arrays, and a
// drain in which nothing else has to be seen to. All others are the general path's, which is Python's: `Drain` and
// `Replay` say what this one must come to.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "../drain/batch.h"

namespace effects {

namespace nb = nanobind;

// All under Python's lock, which is let go of while the leader waits, and for as long as a program goes on in its
// thread.
class DirectCalls {
public:
  // `host` says what the path looks at and what it leaves to Python: `DirectCallsHost` in Python. `patience_s`: after
  // which a batch comes though there is nothing in it.
  DirectCalls(nb::handle host, double patience_s);
  DirectCalls(const DirectCalls &) = delete;

  // The leader's next batch for the general path, a `Batch`, when the calls before it have been answered; None if
  // another thread leads now. `wait_for_nested` and `nested`: what waits for the programs that a function in this
  // thread has called, and the calls that are open of these.
  nb::object next_batch(nb::object wait_for_nested, nb::dict nested);

  // From now on all take the general path.
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
  uint64_t clear_since_ = 0; // the attention when nothing was found
  // Of the host.
  nb::object stream_of_, site_of_, start_thread_, look_, take_results_, fail_, clear_frames_;
  nb::object is_clear_, programs_, frames_;
  nb::dict runs_, running_;
  nb::object array_type_; // of NumPy
  // Names of attributes.
  nb::object eager_, calls_, direct_call_, dtype_, shape_, copy_, run_;
};

} // namespace effects
