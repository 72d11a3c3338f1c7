#include "placed_tokens.h"

#include "../wire.h"

namespace effects {

bool IsDeleted(nb::handle array) {
  static PyObject *const name = PyUnicode_InternFromString("is_deleted");
  PyObject *const self = array.ptr();
  const nb::object deleted = nb::steal(PyObject_VectorcallMethod(name, &self, 1, nullptr));
  if (!deleted.is_valid()) throw nb::python_error();
  return deleted.is(nb::handle(Py_True));
}

PlacedToken Pool::take(uint32_t number) {
  while (!free_.empty() || find_over()) {
    PlacedToken placed = std::move(free_.back());
    free_.pop_back();
    if (IsDeleted(placed.array)) continue; // and its memory is no more
    *placed.epoch = number;
    return placed;
  }
  const nb::object made = make_(number);
  const auto address = nb::cast<uintptr_t>(made[2]);
  uint32_t *const epoch = address == 0 ? nullptr : reinterpret_cast<uint32_t *>(address + offsetof(Token, epoch));
  return {made[0], made[1], epoch, {}};
}

void Pool::give(PlacedToken placed) {
  placed.output_token.reset();
  if (free_.size() < kKept && !placed.memory.is_none()) free_.push_back(std::move(placed));
}

void Pool::give_after(PlacedToken placed, nb::handle output_token) {
  placed.output_token = nb::borrow(output_token);
  if (in_use_.size() < kKept && !placed.memory.is_none()) in_use_.push_back(std::move(placed));
}

// The oldest is taken out before it is asked whether it is over. Otherwise:
//   1. Thread A asks the oldest token, and JAX lets go of Python's lock.
//   2. Thread B asks the same token: it is over. B takes it for its own program.
//   3. A hears that the token is over, and takes it too: two programs have one token.
bool Pool::find_over() {
  if (in_use_.empty()) return false;
  PlacedToken oldest = std::move(in_use_.front());
  in_use_.pop_front();
  if (IsDeleted(oldest.output_token)) return false; // nothing says any more when its memory may be written
  if (nb::cast<bool>(oldest.output_token.attr("is_ready")())) {
    give(std::move(oldest));
    return !free_.empty();
  }
  in_use_.push_front(std::move(oldest));
  return false;
}

} // namespace effects
