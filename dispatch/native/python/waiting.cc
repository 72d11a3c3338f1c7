#include "waiting.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "../xla/runtime.h"

namespace effects {

namespace nb = nanobind;
namespace {

using std::chrono::steady_clock;

constexpr double kLongest = 1e9; // seconds; more would overflow a clock

volatile sig_atomic_t interrupts = -1; // the file for SIGINT
struct sigaction before_interrupts;

extern "C" void OnInterrupt(int) {
  const int number = errno;
  [[maybe_unused]] const auto written = write(interrupts, "", 1); // a full pipe wakes its reader too
  errno = number;
}

class Barrier {
public:
  explicit Barrier(bool nested) { wake_up().begin_barrier(nested); }
  Barrier(const Barrier &) = delete;
  ~Barrier() { wake_up().end_barrier(); }
};

} // namespace

void InterruptsTo(int file) {
  struct sigaction ours = {};
  ours.sa_handler = OnInterrupt;
  ours.sa_flags = SA_RESTART;
  if (file >= 0) interrupts = file;
  if (sigaction(SIGINT, file >= 0 ? &ours : &before_interrupts, file >= 0 ? &before_interrupts : nullptr) != 0)
    throw std::runtime_error("SIGINT takes no handler");
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

HostReply::HostReply() : state_(std::make_shared<State>()) {
  number = replies().ask([state = state_](const Answer &answer) {
    std::lock_guard lock(state->mutex);
    for (const Span &span : answer.results)
      state->results.emplace_back(static_cast<const char *>(span.data), span.size);
    state->error = answer.error;
    state->done = true;
    state->condition.notify_all();
    return Replies::Continuation();
  });
}

nb::list HostReply::wait() {
  for (bool done = false; !done;) {
    {
      nb::gil_scoped_release release;
      std::unique_lock lock(state_->mutex);
      done = state_->condition.wait_for(lock, kSignalPatience, [&] { return state_->done; });
    }
    if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  if (!state_->error.empty()) throw std::runtime_error(state_->error);
  nb::list results;
  for (const std::string &bytes : state_->results) results.append(nb::bytes(bytes.data(), bytes.size()));
  return results;
}

} // namespace effects
