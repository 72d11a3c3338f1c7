// A `with` block that is left whole, whatever interrupts come.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace effects {

namespace nb = nanobind;

// `begin()` gives what the block is given; `end(failed)` is called when the block is over; and then, or if `begin`
// fails, `undo()`, which has no effect if there is nothing to undo. Python runs the handler of a signal between any two
// steps of its code, so that one that raises may skip the rest of a `finally`, and all of an `__exit__` that is written
// in Python. Here `undo` is called until one call has come to its end.
class WithBlock {
public:
  WithBlock(nb::object begin, nb::object end, nb::object undo)
      : begin_(std::move(begin)), end_(std::move(end)), undo_(std::move(undo)) {}

  nb::object enter();
  void exit(nb::handle kind, nb::handle error, nb::handle traceback);

private:
  // Raises the newest interrupt that came meanwhile. `under_way`: what is raised if none does, or null.
  void undo(const nb::python_error *under_way);

  const nb::object begin_, end_, undo_;
};

} // namespace effects
