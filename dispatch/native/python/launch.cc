#include "launch.h"

#include <algorithm>

#include "placed_tokens.h"

namespace effects {

// XLA runs the programs one after the other. Python's lock is free while a thread waits for the middle one, so others
// may wait for the same program, or have taken it out: it is looked for again.
void InFlight::make_room(size_t most) {
  while (!has_room(most)) {
    const nb::object middle = tokens_[tokens_.size() / 2];
    try {
      if (!IsDeleted(middle) && !nb::cast<bool>(middle.attr("is_ready")())) middle.attr("block_until_ready")();
    } catch (nb::python_error &error) { // that the program failed is said elsewhere
      if (!error.matches(PyExc_Exception)) throw;
    }
    const auto at = std::find_if(tokens_.begin(), tokens_.end(), [&](const auto &token) { return token.is(middle); });
    for (auto over = at == tokens_.end() ? 0 : at - tokens_.begin() + 1; over > 0 && !tokens_.empty(); --over) {
      const nb::object token = std::move(tokens_.front()); // freed when it is out of here
      tokens_.pop_front();
    }
  }
}

InFlight &in_flight() {
  static InFlight &all = *new InFlight; // never destroyed: Python may be gone before what is static
  return all;
}

} // namespace effects
