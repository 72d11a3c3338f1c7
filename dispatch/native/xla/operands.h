// The buffers of a call, and its awaited results.
#pragma once

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "../drain/replies.h"
#include "../producer/bytes.h"
#include "../producer/device_token.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

// Buffers from `first` on, as spans. Throws if one is not a buffer. Inline: called for every record.
class Spans {
public:
  Spans(xla::ffi::RemainingArgs args, size_t first) {
    resize(args.size() - first);
    for (size_t i = 0; i < count_; ++i) {
      auto buffer = args.get<xla::ffi::AnyBuffer>(first + i);
      if (!buffer.has_value()) throw std::runtime_error("an operand is not a buffer");
      data()[i] = {buffer->untyped_data(), buffer->size_bytes()};
    }
  }
  Span *data() { return count_ > kInline ? more_.data() : inline_; }
  Span &operator[](size_t at) { return data()[at]; }
  size_t size() const { return count_; }

private:
  void resize(size_t count) {
    count_ = count;
    if (count_ > kInline) more_.resize(count_);
  }
  static constexpr size_t kInline = 8;
  size_t count_;
  Span inline_[kInline];
  std::vector<Span> more_;
};

inline void StoreToken(xla::ffi::RemainingRets rets, size_t at, const DeviceToken &token) {
  StoreToken(token, rets.get<xla::ffi::AnyBuffer>(at).value()->untyped_data());
}

// The results of a call, without the last buffer, which is its token. Throws if one is not a buffer.
std::vector<Out> OutsOf(xla::ffi::RemainingRets rets);
// Copies the results to their buffers. Returns an error text, or an empty one.
std::string CopyResults(const Answer &answer, const std::vector<Out> &outs);

// The buffers for results, and the promise to fill them. Called by the answering thread; no thread waits meanwhile.
class Waiting {
public:
  explicit Waiting(xla::ffi::RemainingRets rets) : outs_(OutsOf(rets)) {}
  xla::ffi::Future future() { return xla::ffi::Future(promise_); }

  Replies::Continuation operator()(const Answer &answer) const;

private:
  std::vector<Out> outs_;
  xla::ffi::Promise promise_;
};

// Runs the body of a handler; an exception is the handler's error. A template, since handlers are many and small.
template <typename Body>
xla::ffi::Error Guard(Body &&body) {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (const std::exception &error) {
    return xla::ffi::Error::Internal(std::string("A record could not be published: ") + error.what());
  }
}

template <typename Body>
xla::ffi::Future GuardFuture(Body &&body) {
  try {
    return body();
  } catch (const std::exception &error) {
    xla::ffi::Promise promise;
    promise.SetError(xla::ffi::Error::Internal(std::string("A callback could not be called: ") + error.what()));
    return xla::ffi::Future(promise);
  }
}

} // namespace effects
