#include "operands.h"

#include <cstring>
#include <utility>

namespace effects {

namespace ffi = xla::ffi;

std::vector<Out> OutsOf(ffi::RemainingRets rets) {
  std::vector<Out> outs;
  for (size_t i = 0; i + 1 < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) throw std::runtime_error("a result is not a buffer");
    outs.push_back({(*buffer)->untyped_data(), (*buffer)->size_bytes()});
  }
  return outs;
}

Replies::Continuation Waiting::operator()(const Answer &answer) const {
  // A copy of the promise: fulfilling it runs the rest of the program, which may free `this`.
  return [promise = promise_, error = CopyResults(answer, outs_)](const std::string &failed) mutable {
    const std::string &why = error.empty() ? failed : error;
    why.empty() ? promise.SetAvailable() : promise.SetError(ffi::Error::Internal(why));
  };
}

std::string CopyResults(const Answer &answer, const std::vector<Out> &outs) {
  if (!answer.error.empty()) return answer.error;
  if (answer.results.size() != outs.size()) return "A callback's answer has another number of results.";
  for (size_t i = 0; i < outs.size(); ++i) {
    if (answer.results[i].size != outs[i].size) return "A callback's answer has another size.";
    if (outs[i].size != 0) std::memcpy(outs[i].data, answer.results[i].data, outs[i].size);
  }
  return {};
}

} // namespace effects
