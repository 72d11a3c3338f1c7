#include "waiting.h"

#include <algorithm>

#include "../xla/runtime.h"

namespace nb = nanobind;

namespace effects {
namespace {

using std::chrono::steady_clock;

constexpr double kLongest = 1e9; // seconds that a clock can count

class Barrier {
public:
  explicit Barrier(bool nested) { wake_up().begin_barrier(nested); }
  Barrier(const Barrier &) = delete;
  ~Barrier() { wake_up().end_barrier(); }
};

} // namespace

void WaitForBegun(uint32_t thread) {
  for (bool begun = false; !begun;) {
    {
      nb::gil_scoped_release release;
      begun = gates().wait_for_begun(thread, kSignalPatience);
    }
    if (!begun && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

bool WaitUntil(nb::object done, nb::object timeout, bool nested) {
  auto deadline = steady_clock::time_point::max();
  if (!timeout.is_none()) {
    const std::chrono::duration<double> seconds(std::min(nb::cast<double>(timeout), kLongest));
    deadline = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(seconds);
  }
  const Barrier barrier(nested);
  for (;;) {
    const uint64_t steps = progress().steps();
    if (nb::cast<bool>(done())) return true;
    const auto now = steady_clock::now();
    if (now >= deadline) return false;
    {
      nb::gil_scoped_release release;
      progress().wait_beyond(steps, std::min<steady_clock::time_point>(deadline, now + kSignalPatience));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

} // namespace effects
