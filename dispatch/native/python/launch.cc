#include "launch.h"

#include <algorithm>
#include <set>

#include "placed_tokens.h"

namespace effects {

namespace {

bool IsOver(const nb::object &token) { return IsDeleted(token) || nb::cast<bool>(token.attr("is_ready")()); }

} // namespace

// A program without collectives may overtake those before it, so that each is asked whether it is over. Python's lock
// is free meanwhile, and others may add programs or take some out: a copy is asked, which also frees them at the end.
void InFlight::make_room(size_t most) {
  while (!has_room(most)) {
    const std::deque<nb::object> asked = tokens_;
    const nb::object middle = asked[asked.size() / 2];
    std::set<PyObject *> over{middle.ptr()};
    try {
      if (!IsOver(middle)) middle.attr("block_until_ready")();
    } catch (nb::python_error &error) { // that the program failed is said elsewhere
      if (!error.matches(PyExc_Exception)) throw;
    }
    for (const nb::object &token : asked)
      if (IsOver(token)) over.insert(token.ptr());
    tokens_.erase(std::remove_if(tokens_.begin(), tokens_.end(), [&](auto &token) { return over.count(token.ptr()); }),
                  tokens_.end());
  }
}

InFlight &in_flight() {
  static InFlight &all = *new InFlight; // never destroyed: Python may be gone before what is static
  return all;
}

} // namespace effects
