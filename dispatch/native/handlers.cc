// XLA FFI handlers: where a compiled program on the CPU meets the publisher. No exception leaves them, and none of
// them takes the Python lock.
#include "handlers.h"

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "helpers.h"
#include "xla/ffi/api/ffi.h"

namespace effects {
namespace {

namespace ffi = xla::ffi;

constexpr char kWrongToken[] =
    "A token does not have the type uint32[4]. Effects and the native module must come from one version of "
    "token-effects. Install the package anew.";

// The traits of a call, in one attribute, since a program has many calls; see `lowering/_emit.py`. Above the devices is
// a number that keeps apart calls that are otherwise equal.
constexpr int64_t kIsOrdered = 1, kCloses = 2, kIsCallback = 4, kDevicesMask = 0xffffff;
constexpr int kDevicesShift = 8;

// What a loaded program keeps of a site of its own.
struct LoadedSite {
  static ffi::TypeId id;

  uint64_t site;
  Kind kind;
  bool closes;         // it is the last record of its program, which has no other tokens
  uint16_t flags;      // of its records
  uint32_t replicated; // how many devices publish alike; 0: each for itself

  LoadedSite(int64_t site_id, int64_t traits, std::string_view description)
      : site(static_cast<uint64_t>(site_id)), kind(traits & kIsOrdered ? Kind::kOrdered : Kind::kUnordered),
        closes((traits & kCloses) != 0), replicated(static_cast<uint32_t>(traits >> kDevicesShift & kDevicesMask)) {
    flags = static_cast<uint16_t>((traits & kIsCallback ? kCallback : 0) | (replicated != 0 ? kReplicated : 0));
    sites().retain(site, description);
  }
  LoadedSite(const LoadedSite &) = delete;
  ~LoadedSite() { drain().release_site(site); }
};
ffi::TypeId LoadedSite::id{};

template <typename Body>
ffi::Error Guard(Body &&body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const std::exception &error) {
    return ffi::Error::Internal(std::string("A record could not be published: ") + error.what());
  }
}

// Buffers from `first` on, as spans.
class Spans {
public:
  Spans(ffi::RemainingArgs args, size_t first) {
    resize(args.size() - first);
    for (size_t i = 0; i < count_; ++i) {
      auto buffer = args.get<ffi::AnyBuffer>(first + i);
      if (!buffer.has_value()) throw std::runtime_error("an operand is not a buffer");
      data()[i] = {buffer->untyped_data(), buffer->size_bytes()};
    }
  }
  Span *data() { return count_ > kInline ? more_.data() : inline_; }
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

Token LoadToken(Span span) {
  if (span.size != sizeof(Token)) throw std::invalid_argument(kWrongToken);
  Token token;
  std::memcpy(&token, span.data, sizeof token);
  return token;
}

void StoreToken(ffi::RemainingRets rets, size_t at, const Token &token) {
  std::memcpy(rets.get<ffi::AnyBuffer>(at).value()->untyped_data(), &token, sizeof token);
}

// Where results go, and the promise that they will be there. The last of what a call returns is its token.
class Waiting {
public:
  explicit Waiting(ffi::RemainingRets rets) {
    for (size_t i = 0; i + 1 < rets.size(); ++i) {
      auto buffer = rets.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) throw std::runtime_error("a result is not a buffer");
      outs_.push_back({(*buffer)->untyped_data(), (*buffer)->size_bytes()});
    }
  }
  ffi::Future future() { return ffi::Future(promise_); }

  void operator()(const Answer &answer) const {
    ffi::Promise promise = promise_; // what follows runs the rest of the program, which may free us
    if (!answer.error.empty()) return promise.SetError(ffi::Error::Internal(answer.error));
    if (answer.results.size() != outs_.size())
      return promise.SetError(ffi::Error::Internal("A callback's answer has another number of results."));
    for (size_t i = 0; i < outs_.size(); ++i) {
      if (answer.results[i].size != outs_[i].size)
        return promise.SetError(ffi::Error::Internal("A callback's answer has another size."));
      if (outs_[i].size != 0) std::memcpy(outs_[i].data, answer.results[i].data, outs_[i].size);
    }
    promise.SetAvailable();
  }

private:
  struct Out {
    void *data;
    size_t size;
  };
  std::vector<Out> outs_;
  ffi::Promise promise_;
};

template <typename Body>
ffi::Future GuardFuture(Body &&body) {
  try {
    return body();
  } catch (const std::exception &error) {
    ffi::Promise promise;
    promise.SetError(ffi::Error::Internal(std::string("A callback could not be called: ") + error.what()));
    return ffi::Future(promise);
  }
}

// When the process ends nobody is there to answer.
constexpr char kStopped[] =
    "A callback with results did not run. The process ends, and nothing that is waited for is replayed any more. Call "
    "its program earlier, or register the exit handler that does after importing `effects`.";

// The program whose tokens these are has published all it will. `devices`: how many run it; 0: this one.
void PublishClose(const Span *tokens, size_t count, const Token &first, int32_t device, uint32_t devices) {
  publisher().publish(Kind::kClose, devices, first, device, tokens, count);
  if (devices == 0) publisher().note_closed(first);
  if (publisher().barriers.load(std::memory_order_relaxed) > 0) publisher().wake();
}

// (token, *operands) -> token: one record.
ffi::Error Record(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::Buffer<ffi::U32> token,
                  ffi::RemainingArgs operands, ffi::Result<ffi::Buffer<ffi::U32>> next) {
  return Guard([&] {
    Token place = LoadToken({token.untyped_data(), token.size_bytes()});
    Spans spans(operands, 0);
    publisher().publish(site->kind, site->site, place, device, spans.data(), spans.size(), site->flags);
    if (site->kind == Kind::kOrdered) ++place.index;
    if (site->closes) {
      const Span token_after{&place, sizeof place};
      PublishClose(&token_after, 1, place, device, site->replicated);
    }
    std::memcpy(next->typed_data(), &place, sizeof place);
  });
}

// (token, *operands) -> (*results, token): one record of a callback. The results come when it has run in its turn;
// until then no thread waits.
ffi::Future Call(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans token_in(args, 0);
    Token place = LoadToken(token_in.data()[0]);
    Token next = place;
    if (site->kind == Kind::kOrdered) ++next.index;
    StoreToken(rets, rets.size() - 1, next);

    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    // Unordered calls of one program may have one token: which are copies of each other cannot be told, so each device
    // asks for itself.
    const bool shared = site->replicated != 0 && site->kind == Kind::kOrdered;
    const uint32_t reply = shared ? replies().ask_replicated(place, site->replicated, std::move(waiting))
                                  : replies().ask(std::move(waiting), place);
    if (reply != 0 && !FailIfStopped(reply)) {
      Spans spans(args, 1);
      publisher().publish(site->kind, site->site, place, device, spans.data(), spans.size(), site->flags, reply);
    }
    return future;
  });
}

// (*tokens) -> token: the program has published all it will.
ffi::Error Close(int64_t devices, int32_t device, ffi::RemainingArgs tokens,
                 ffi::Result<ffi::Buffer<ffi::U32>> output) {
  return Guard([&] {
    Spans spans(tokens, 0);
    const Token first = LoadToken(spans.data()[0]);
    PublishClose(spans.data(), spans.size(), first, device, static_cast<uint32_t>(devices));
    std::memcpy(output->typed_data(), &first, sizeof first);
  });
}

// (*tokens) -> (*tokens): each device counts for itself from here on. The first `ordered` of the tokens count.
ffi::Error Enter(int64_t ordered, int64_t devices, bool apart, int32_t device, ffi::RemainingArgs tokens,
                 ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(tokens, 0);
    std::vector<Token> inside;
    for (size_t i = 0; i < spans.size(); ++i) inside.push_back(LoadToken(spans.data()[i]));
    const size_t count = static_cast<size_t>(ordered);
    for (size_t i = 0; i < count; ++i) ++inside[i].phase;
    const Span payload{inside.data(), count * sizeof(Token)};
    if (count != 0)
      publisher().publish(Kind::kEnter, static_cast<uint64_t>(devices), inside[0], device, &payload, 1,
                          apart ? kApart : 0);
    for (size_t i = 0; i < inside.size(); ++i) {
      if (i < count) inside[i].index = 0;
      StoreToken(rets, i, inside[i]);
    }
  });
}

// (*tokens, *tokens at the entry) -> (*tokens): and ends it.
ffi::Error Leave(int64_t ordered, int32_t device, ffi::RemainingArgs tokens, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(tokens, 0);
    const size_t count = static_cast<size_t>(ordered);
    if (count != 0) publisher().publish(Kind::kLeave, 0, LoadToken(spans.data()[0]), device, spans.data(), count);
    for (size_t i = 0; i < rets.size(); ++i) {
      Token outside = LoadToken(spans.data()[rets.size() + i]);
      if (i < count) outside.phase += 2;
      StoreToken(rets, i, outside);
    }
  });
}

// (*tokens, *values) -> the values, in the same memory: they are there after what the tokens stand for.
ffi::Error After(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

// (*operands) -> nothing, or with the runtime's own token in and out: a record of a program that was not dispatched by
// `effects.jit`. The runtime orders these; the number is given here.
ffi::Error Plain(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets) {
  return Guard([&] {
    const bool ordered = site->kind == Kind::kOrdered;
    Spans spans(operands, ordered ? 1 : 0);
    PublishPlain(site->site, ordered, device, spans.data(), spans.size(), site->flags);
  });
}

// As `Plain`, with results.
ffi::Future PlainCall(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands,
                      ffi::RemainingRets rets) {
  return GuardFuture([&] {
    const bool ordered = site->kind == Kind::kOrdered;
    Spans spans(operands, ordered ? 1 : 0);
    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    const uint32_t reply = replies().ask(std::move(waiting));
    if (FailIfStopped(reply)) return future;
    PublishPlain(site->site, ordered, device, spans.data(), spans.size(), site->flags, reply);
    return future;
  });
}

// When a program is loaded: its sites introduce themselves, so that one compiled elsewhere is understood here.
ffi::ErrorOr<std::unique_ptr<LoadedSite>> Introduce(int64_t site, int64_t traits, std::string_view description) {
  try {
    return std::make_unique<LoadedSite>(site, traits, description);
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A site could not be introduced: ") + error.what()));
  }
}

XLA_FFI_DEFINE_HANDLER(
    kIntroduce, Introduce,
    ffi::Ffi::BindInstantiate().Attr<int64_t>("site").Attr<int64_t>("traits").Attr<std::string_view>("description"));
XLA_FFI_DEFINE_HANDLER(kRecord, Record,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<LoadedSite>>()
                           .Attrs()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Arg<ffi::Buffer<ffi::U32>>()
                           .RemainingArgs()
                           .Ret<ffi::Buffer<ffi::U32>>());
XLA_FFI_DEFINE_HANDLER(
    kCall, Call,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kClose, Close,
    ffi::Ffi::Bind().Attr<int64_t>("devices").Ctx<ffi::DeviceOrdinal>().RemainingArgs().Ret<ffi::Buffer<ffi::U32>>());
XLA_FFI_DEFINE_HANDLER(kEnter, Enter,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>("ordered")
                           .Attr<int64_t>("devices")
                           .Attr<bool>("apart")
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kLeave, Leave, ffi::Ffi::Bind().Attr<int64_t>("ordered").Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kAfter, After, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kPlain, Plain,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kPlainCall, PlainCall,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());

} // namespace

// Never destroyed: XLA's threads may outlive the static objects of this library.
Publisher &publisher() {
  static auto *const instance = new Publisher();
  return *instance;
}
Drain &drain() {
  static auto *const instance = new Drain(publisher(), sites(), replies());
  return *instance;
}
Sites &sites() {
  static auto *const instance = new Sites();
  return *instance;
}
Replies &replies() {
  static auto *const helpers = new Helpers();
  static auto *const instance = new Replies([](std::function<void()> job) { helpers->run(std::move(job)); });
  return *instance;
}

void PublishPlain(uint64_t site, bool ordered, int32_t device, const Span *spans, size_t count, uint16_t flags,
                  uint32_t reply) {
  Token place{kPlainThread << kDomainBits,
              static_cast<uint32_t>(publisher().dispatches.load(std::memory_order_relaxed)), 0, 0};
  if (ordered) place.index = publisher().plain_index.fetch_add(1, std::memory_order_relaxed);
  if (publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, place, device, spans, count, flags, reply))
    drain().plain_published();
}

bool FailIfStopped(uint32_t reply) {
  if (reply == 0 || !publisher().stopped.load()) return false;
  replies().fail(reply, kStopped);
  return true;
}

void *LoadedSiteTypeId() { return &LoadedSite::id; }
void *LoadedSiteTypeInfo() {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedSite>();
  return &info;
}

const std::vector<Handler> &handlers() {
  static const auto *const all = new std::vector<Handler>{
      {"effects_record", "instantiate", reinterpret_cast<void *>(kIntroduce)},
      {"effects_record", "execute", reinterpret_cast<void *>(kRecord)},
      {"effects_call", "instantiate", reinterpret_cast<void *>(kIntroduce)},
      {"effects_call", "execute", reinterpret_cast<void *>(kCall)},
      {"effects_close", "execute", reinterpret_cast<void *>(kClose)},
      {"effects_enter", "execute", reinterpret_cast<void *>(kEnter)},
      {"effects_leave", "execute", reinterpret_cast<void *>(kLeave)},
      {"effects_after", "execute", reinterpret_cast<void *>(kAfter)},
      {"effects_plain", "instantiate", reinterpret_cast<void *>(kIntroduce)},
      {"effects_plain", "execute", reinterpret_cast<void *>(kPlain)},
      {"effects_plain_call", "instantiate", reinterpret_cast<void *>(kIntroduce)},
      {"effects_plain_call", "execute", reinterpret_cast<void *>(kPlainCall)},
  };
  return *all;
}

} // namespace effects
