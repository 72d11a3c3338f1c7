#include "host_reply.h"

#include <stdexcept>

#include "../xla/runtime.h"
#include "waiting.h"

namespace nb = nanobind;

namespace effects {

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
