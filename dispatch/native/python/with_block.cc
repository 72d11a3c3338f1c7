#include "with_block.h"

#include <optional>

namespace effects {
namespace {

// Sets the context of an exception, as Python does.
void AddContext(nb::object error, const nb::object &context) {
  for (;;) {
    nb::object next = nb::steal(PyException_GetContext(error.ptr()));
    if (!next.is_valid()) break;
    error = std::move(next);
  }
  if (!error.is(context)) PyException_SetContext(error.ptr(), context.inc_ref().ptr());
}

} // namespace

nb::object WithBlock::enter() {
  try {
    return begin_();
  } catch (nb::python_error &error) {
    undo(&error);
    throw;
  }
}

void WithBlock::exit(nb::handle kind, nb::handle, nb::handle) {
  try {
    end_(!kind.is_none());
  } catch (nb::python_error &error) {
    undo(&error);
    throw;
  }
  undo(nullptr);
}

void WithBlock::undo(const nb::python_error *under_way) {
  std::optional<nb::python_error> interrupt;
  for (bool undone = false; !undone;) {
    try {
      undo_();
      undone = true;
    } catch (nb::python_error &error) {
      if (error.matches(PyExc_Exception)) throw; // an error of undo_() itself
      interrupt.emplace(error);
    }
  }
  if (!interrupt) return;
  if (under_way != nullptr) AddContext(nb::borrow(interrupt->value()), nb::borrow(under_way->value()));
  throw nb::python_error(*interrupt);
}

} // namespace effects
