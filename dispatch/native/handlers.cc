// XLA FFI handlers: where a compiled program on the CPU meets the publisher. No exception leaves them, and none of
// them takes the Python lock.
#include "handlers.h"

#include <exception>
#include <string>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace effects {
namespace {

namespace ffi = xla::ffi;

Token LoadToken(const ffi::Buffer<ffi::U32> &buffer) {
  Token token;
  std::memcpy(&token, buffer.typed_data(), sizeof token);
  return token;
}

ffi::Error WrongToken() {
  return ffi::Error::InvalidArgument(
      "A token does not have the type uint32[4]. Effects and the native module must come from one version of "
      "token-effects. Install the package anew.");
}

template <typename Body>
ffi::Error Guard(Body &&body) {
  try {
    return body();
  } catch (const std::exception &error) {
    return ffi::Error::Internal(std::string("A record could not be published: ") + error.what());
  }
}

// Operands from `first` on, as spans.
class Spans {
public:
  Spans(ffi::RemainingArgs args, size_t first) {
    count_ = args.size() - first;
    if (count_ > kInline) more_.resize(count_);
    for (size_t i = 0; i < count_; ++i) {
      auto buffer = args.get<ffi::AnyBuffer>(first + i);
      if (!buffer.has_value()) throw std::runtime_error("an operand is not a buffer");
      data()[i] = {buffer->untyped_data(), buffer->size_bytes()};
    }
  }
  Span *data() { return count_ > kInline ? more_.data() : inline_; }
  size_t size() const { return count_; }

private:
  static constexpr size_t kInline = 8;
  size_t count_;
  Span inline_[kInline];
  std::vector<Span> more_;
};

// The program whose tokens these are has published all it will.
void PublishClose(const Span *tokens, size_t count, const Token &first, int32_t device, bool replicated) {
  publisher().publish(Kind::kClose, 0, first, device, tokens, count, replicated);
  if (!replicated) publisher().note_closed(first);
  if (publisher().barriers.load(std::memory_order_relaxed) > 0) publisher().wake();
}

// (token, *operands) -> token: one record. `call` keeps apart calls that are otherwise equal; `closes`: it is the last
// of its program, which has no other tokens.
ffi::Error Record(int64_t site, bool ordered, bool closes, bool replicated, int32_t, std::string_view, int32_t device,
                  ffi::Buffer<ffi::U32> token, ffi::RemainingArgs operands, ffi::Result<ffi::Buffer<ffi::U32>> next) {
  return Guard([&] {
    if (token.element_count() != 4) return WrongToken();
    Token place = LoadToken(token);
    Spans spans(operands, 0);
    publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, static_cast<uint64_t>(site), place, device,
                        spans.data(), spans.size(), replicated);
    if (ordered) ++place.index;
    if (closes) {
      const Span token_after{&place, sizeof place};
      PublishClose(&token_after, 1, place, device, replicated);
    }
    std::memcpy(next->typed_data(), &place, sizeof place);
    return ffi::Error::Success();
  });
}

// (*tokens) -> token: the program has published all it will.
ffi::Error Close(bool replicated, int32_t device, ffi::RemainingArgs tokens,
                 ffi::Result<ffi::Buffer<ffi::U32>> output) {
  return Guard([&] {
    Spans spans(tokens, 0);
    if (spans.size() == 0 || spans.data()[0].size != sizeof(Token)) return WrongToken();
    Token first;
    std::memcpy(&first, spans.data()[0].data, sizeof first);
    PublishClose(spans.data(), spans.size(), first, device, replicated);
    std::memcpy(output->typed_data(), &first, sizeof first);
    return ffi::Error::Success();
  });
}

// (*operands) -> (), or with the runtime's own token in and out: a record of a program that was not dispatched by
// `effects.jit`. The runtime orders these; the number is given here.
ffi::Error Plain(int64_t site, bool ordered, std::string_view, int32_t device, ffi::RemainingArgs operands,
                 ffi::RemainingRets) {
  return Guard([&] {
    Spans spans(operands, ordered ? 1 : 0);
    PublishPlain(static_cast<uint64_t>(site), ordered, device, spans.data(), spans.size());
    return ffi::Error::Success();
  });
}

// When a program is loaded: its sites introduce themselves, so that one compiled elsewhere is understood here.
ffi::Error Introduce(int64_t site, bool, bool, bool, int32_t, std::string_view description) {
  return Guard([&] {
    sites().introduce(static_cast<uint64_t>(site), description);
    return ffi::Error::Success();
  });
}
ffi::Error IntroducePlain(int64_t site, bool ordered, std::string_view description) {
  return Introduce(site, ordered, false, false, 0, description);
}

XLA_FFI_DEFINE_HANDLER(kIntroduce, Introduce,
                       ffi::Ffi::BindInstantiate()
                           .Attr<int64_t>("site")
                           .Attr<bool>("ordered")
                           .Attr<bool>("closes")
                           .Attr<bool>("replicated")
                           .Attr<int32_t>("call")
                           .Attr<std::string_view>("description"));
XLA_FFI_DEFINE_HANDLER(kRecord, Record,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("site")
                           .Attr<bool>("ordered")
                           .Attr<bool>("closes")
                           .Attr<bool>("replicated")
                           .Attr<int32_t>("call")
                           .Attr<std::string_view>("description")
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::Buffer<ffi::U32>>()
                           .RemainingArgs()
                           .Ret<ffi::Buffer<ffi::U32>>());
XLA_FFI_DEFINE_HANDLER(
    kClose, Close,
    ffi::Ffi::Bind().Attr<bool>("replicated").Ctx<ffi::DeviceOrdinal>().RemainingArgs().Ret<ffi::Buffer<ffi::U32>>());
XLA_FFI_DEFINE_HANDLER(
    kIntroducePlain, IntroducePlain,
    ffi::Ffi::BindInstantiate().Attr<int64_t>("site").Attr<bool>("ordered").Attr<std::string_view>("description"));
XLA_FFI_DEFINE_HANDLER(kPlain, Plain,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("site")
                           .Attr<bool>("ordered")
                           .Attr<std::string_view>("description")
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

} // namespace

// Never destroyed: XLA's threads may outlive the static objects of this library.
Publisher &publisher() {
  static auto *const instance = new Publisher();
  return *instance;
}
Drain &drain() {
  static auto *const instance = new Drain(publisher());
  return *instance;
}
Sites &sites() {
  static auto *const instance = new Sites();
  return *instance;
}

void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count) {
  Token place{kPlainThread << kDomainBits,
              static_cast<uint32_t>(publisher().dispatches.load(std::memory_order_relaxed)), 0, 0};
  if (ordered) place.index = publisher().plain_index.fetch_add(1, std::memory_order_relaxed);
  if (publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, place, device, spans, count))
    drain().plain_published();
}

const std::vector<Handler> &handlers() {
  static const auto *const all = new std::vector<Handler>{
      {"effects_record", "instantiate", reinterpret_cast<void *>(kIntroduce)},
      {"effects_record", "execute", reinterpret_cast<void *>(kRecord)},
      {"effects_close", "execute", reinterpret_cast<void *>(kClose)},
      {"effects_plain", "instantiate", reinterpret_cast<void *>(kIntroducePlain)},
      {"effects_plain", "execute", reinterpret_cast<void *>(kPlain)},
  };
  return *all;
}

} // namespace effects
