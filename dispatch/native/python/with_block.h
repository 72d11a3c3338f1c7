// A `with` block that interrupts cannot leave half done.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace effects {

namespace nb = nanobind;

// `begin()` returns the value of the block, and `end(failed)` is called after it. Then, or if `begin` fails, `undo()`
// is called, which is a no-op if there is nothing to undo. Python handles a signal between any two steps of its code,
// so a handler that raises may skip the rest of a `finally`, or a whole `__exit__` written in Python. Here `undo` is
// called until one call completes.
class WithBlock {
public:
  WithBlock(nb::object begin, nb::object end, nb::object undo)
      : begin_(std::move(begin)), end_(std::move(end)), undo_(std::move(undo)) {}

  nb::object enter();
  void exit(nb::handle kind, nb::handle error, nb::handle traceback);

private:
  // Raises the newest interrupt that came meanwhile, else `under_way` unless that is null.
  void undo(const nb::python_error *under_way);

  const nb::object begin_, end_, undo_;
};

} // namespace effects
