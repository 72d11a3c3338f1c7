#include "operands.h"

#include <cstring>
#include <utility>

namespace effects {

namespace ffi = xla::ffi;

Waiting::Waiting(ffi::RemainingRets rets) {
  for (size_t i = 0; i + 1 < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) throw std::runtime_error("a result is not a buffer");
    outs_.push_back({(*buffer)->untyped_data(), (*buffer)->size_bytes()});
  }
}

Replies::Continuation Waiting::operator()(const Answer &answer) const {
  // A copy of the promise: what follows runs the rest of the program, which may free us.
  if (std::string error = take(answer); !error.empty())
    return [promise = promise_, error = std::move(error)]() mutable { promise.SetError(ffi::Error::Internal(error)); };
  return [promise = promise_]() mutable { promise.SetAvailable(); };
}

// Puts the results where they go. Returns what is wrong, if anything is.
std::string Waiting::take(const Answer &answer) const {
  if (!answer.error.empty()) return answer.error;
  if (answer.results.size() != outs_.size()) return "A callback's answer has another number of results.";
  for (size_t i = 0; i < outs_.size(); ++i) {
    if (answer.results[i].size != outs_[i].size) return "A callback's answer has another size.";
    if (outs_[i].size != 0) std::memcpy(outs_[i].data, answer.results[i].data, outs_[i].size);
  }
  return {};
}

} // namespace effects
