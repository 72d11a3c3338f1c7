#include "launch.h"

#include <algorithm>
#include <set>

#include "placed_tokens.h"

namespace effects {

namespace {

// True if a program has ended; with `waits`, returns once it has. A failed program has ended, too.
bool HasEnded(const nb::object &token, bool waits) {
  try {
    if (IsDeleted(token) || nb::cast<bool>(token.attr("is_ready")())) return true;
    if (waits) token.attr("block_until_ready")();
    return waits;
  } catch (nb::python_error &error) {
    if (!error.matches(PyExc_Exception)) throw;
    return true;
  }
}

} // namespace

// Each program is polled, since one without collectives may overtake those before it:
// 1. A thread launches programs with collectives, and another thread one without.
// 2. That one ends first. If the programs before it were removed with it, they would run without being counted.
// 3. The first thread launches so many more that XLA has no thread left, and the devices deadlock.
// Python's lock is free meanwhile, and others may add programs or take some out: a copy is asked.
void InFlight::make_room(size_t most) {
  while (!has_room(most)) {
    const std::deque<nb::object> asked = tokens_; // keeps the removed ones alive until here
    const nb::object &middle = asked[asked.size() / 2];
    std::set<PyObject *> ended;
    if (HasEnded(middle, true)) ended.insert(middle.ptr());
    for (const nb::object &token : asked)
      if (HasEnded(token, false)) ended.insert(token.ptr());
    tokens_.erase(std::remove_if(tokens_.begin(), tokens_.end(), [&](auto &token) { return ended.count(token.ptr()); }),
                  tokens_.end());
  }
}

InFlight &in_flight() {
  static InFlight &all = *new InFlight; // never destroyed: Python may be finalized before static objects are destroyed
  return all;
}

} // namespace effects
