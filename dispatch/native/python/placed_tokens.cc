#include "placed_tokens.h"

#include "../producer/token_cells.h"
#include "../xla/runtime.h"
#include "call.h"

namespace effects {

bool IsDeleted(nb::handle array) {
  static PyObject *const name = PyUnicode_InternFromString("is_deleted");
  const nb::object deleted = CallMethod(array, name);
  if (!deleted.is_valid()) throw nb::python_error();
  return deleted.is(nb::handle(Py_True));
}

// For tokens in use, frees only the cells of programs that are known to be over, as take_back() does: devices may still
// read the other cells.
Pool::~Pool() {
  for (const PlacedToken &placed : free_) token_cells().release(placed.cell);
  for (const PlacedToken &placed : in_use_)
    if (!placed.output_token.is_valid() && publisher().closed.contains(thread_, placed.number))
      token_cells().release(placed.cell);
}

PlacedToken Pool::take(uint32_t number, nb::handle calls) {
  if (free_.empty()) take_back(calls);
  while (!free_.empty()) {
    PlacedToken placed = std::move(free_.back());
    free_.pop_back();
    if (IsDeleted(placed.array)) {
      token_cells().release(placed.cell);
      continue;
    }
    token_cells().set(placed.cell, thread_, number);
    placed.number = number;
    return placed;
  }
  const uint32_t cell = token_cells().add();
  if (cell != 0) token_cells().set(cell, thread_, number);
  return {make_(cell, number), cell, number, {}, false};
}

void Pool::give(PlacedToken placed) {
  if (placed.cell == 0) return;
  placed.output_token.reset();
  placed.is_late = false;
  if (free_.size() < kKept)
    free_.push_back(std::move(placed));
  else
    token_cells().release(placed.cell);
}

void Pool::give_later(PlacedToken placed, nb::handle output_token) {
  if (!output_token.is_none()) placed.output_token = nb::borrow(output_token);
  if (placed.cell != 0 && in_use_.size() < kKept) in_use_.push_back(std::move(placed));
}

// Takes back the oldest tokens whose programs are over. Only a closed program is known to be over: records of a failed
// one may still come, in a stream or from other devices, so its token is dropped and its cell not reused. The drain may
// learn that a program has closed before this thread does, so such a token is checked once more, later.
//
// The oldest token is removed before its program is polled. Otherwise:
//   1. Thread A polls the oldest token's program, and JAX releases Python's lock.
//   2. Thread B polls the same program: it is over. B takes the token for its own program.
//   3. A learns that it is over, and takes the token too: two programs have one token.
void Pool::take_back(nb::handle calls) {
  for (size_t count = in_use_.size(); count > 0 && !in_use_.empty(); --count) {
    PlacedToken oldest = std::move(in_use_.front());
    in_use_.pop_front();
    const bool has_closed = publisher().closed.contains(thread_, oldest.number);
    const nb::handle output_token = oldest.output_token;
    if (has_closed && output_token.is_valid() && IsDeleted(output_token)) continue; // its end cannot be polled any more
    if (has_closed && (!output_token.is_valid() || nb::cast<bool>(output_token.attr("is_ready")()))) {
      give(std::move(oldest));
      continue;
    }
    if (has_closed || PyDict_Contains(calls.ptr(), nb::int_(oldest.number).ptr()) == 1) {
      in_use_.push_front(std::move(oldest));
      return;
    }
    if (!std::exchange(oldest.is_late, true)) in_use_.push_back(std::move(oldest));
  }
}

} // namespace effects
