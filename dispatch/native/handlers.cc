// XLA FFI handlers: where a compiled program on the CPU meets the publisher. No exception leaves them, and none of
// them takes the Python lock.
#include "handlers.h"

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace effects {
namespace {

namespace ffi = xla::ffi;

constexpr char kWrongToken[] =
    "A token has neither the type uint32[4] nor uint32[8]. Effects and the native module must come from one version of "
    "token-effects. Install the package anew.";

// The traits of a call, in one attribute, since a program has many calls; see `lowering/_emit.py`. Above the devices is
// a number that keeps apart calls that are otherwise equal.
constexpr int64_t kIsOrdered = 1, kCloses = 2, kIsCallback = 4, kEnters = 8, kLeaves = 16, kMayPart = 32, kIsAlike = 64,
                  kHasShards = 128, kDevicesMask = 0xffffff;
constexpr int kDevicesShift = 8;

// What a loaded program keeps of a site of its own.
struct LoadedSite {
  static ffi::TypeId id;

  uint64_t site;
  Kind kind;
  bool closes;      // it is the last record of its program, which has no other tokens
  bool enters;      // it is the first record of its region
  bool leaves;      // and the last
  bool apart;       // as for Enter
  bool alike;       // all devices publish the same
  bool has_shards;  // each its part of what is sharded
  uint16_t flags;   // of its records
  uint32_t devices; // how many devices come to it, where that matters

  LoadedSite(int64_t site_id, int64_t traits, std::string_view description)
      : site(static_cast<uint64_t>(site_id)), kind(traits & kIsOrdered ? Kind::kOrdered : Kind::kUnordered),
        closes((traits & kCloses) != 0), enters((traits & kEnters) != 0), leaves((traits & kLeaves) != 0),
        apart((traits & kMayPart) != 0), alike((traits & kIsAlike) != 0),
        has_shards((traits & kHasShards) != 0),
        devices(static_cast<uint32_t>(traits >> kDevicesShift & kDevicesMask)) {
    flags = static_cast<uint16_t>((traits & kIsCallback ? kCallback : 0) | (alike ? kReplicated : 0));
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

Token LoadToken(Span span) { return LoadPlace(span.data, span.size).token; }

void StorePlace(ffi::RemainingRets rets, size_t at, const Place &place) {
  effects::StorePlace(place, rets.get<ffi::AnyBuffer>(at).value()->untyped_data());
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

  Replies::GoOn operator()(const Answer &answer) const {
    // A copy of the promise: what follows runs the rest of the program, which may free us.
    if (std::string error = take(answer); !error.empty())
      return [promise = promise_, error = std::move(error)]() mutable { promise.SetError(ffi::Error::Internal(error)); };
    return [promise = promise_]() mutable { promise.SetAvailable(); };
  }

private:
  // Puts the results where they go. Returns what is wrong, if anything is.
  std::string take(const Answer &answer) const {
    if (!answer.error.empty()) return answer.error;
    if (answer.results.size() != outs_.size()) return "A callback's answer has another number of results.";
    for (size_t i = 0; i < outs_.size(); ++i) {
      if (answer.results[i].size != outs_[i].size) return "A callback's answer has another size.";
      if (outs_[i].size != 0) std::memcpy(outs_[i].data, answer.results[i].data, outs_[i].size);
    }
    return {};
  }

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
  publisher().note_closed(first, devices);
  if (publisher().barriers.load(std::memory_order_relaxed) > 0) publisher().wake();
}

// A device begins to count for itself. The tokens are those of the region, but for their index.
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool apart) {
  publisher().publish(Kind::kEnter, devices, first, device, &tokens, 1, apart ? kApart : 0);
}

// (token, *operands) -> token: one record. The first of a region takes the token around it; the last gives that back,
// and takes it behind its own if it is not the first too. Of what is sharded, the first operand is a row of numbers:
// whether this device speaks, as the first of those that have the same parts, and what the record begins with.
ffi::Error Record(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::Buffer<ffi::U32> token,
                  ffi::RemainingArgs args, ffi::Result<ffi::Buffer<ffi::U32>> next) {
  return Guard([&] {
    Place place = LoadPlace(token.untyped_data(), token.size_bytes());
    Spans spans(args, 0);
    size_t before = site->leaves && !site->enters ? 1 : 0;
    Token around = before != 0 ? LoadToken(spans.data()[0]) : place.token;
    if (site->enters) {
      ++place.token.phase;
      PublishEnter({&place.token, sizeof place.token}, place.token, device, site->devices, site->apart);
      place.token.index = 0;
    }
    bool speaks = place.speaks();
    if (site->has_shards) {
      Span &row = spans.data()[0];
      int32_t is_first;
      std::memcpy(&is_first, row.data, sizeof is_first);
      speaks = is_first != 0;
      row = {static_cast<const std::byte *>(row.data) + sizeof is_first, row.size - sizeof is_first};
      before = row.size == 0 ? 1 : 0;
    }
    if (speaks)
      publisher().publish(site->kind, site->site, place.token, device, spans.data() + before, spans.size() - before,
                          site->flags);
    if (site->kind == Kind::kOrdered && (speaks || place.has_part)) CountOn(place, device, speaks);
    if (site->leaves) {
      const Span last{&place.token, sizeof place.token};
      publisher().publish(Kind::kLeave, 0, place.token, device, &last, 1);
      around.phase += 2;
      place.token = around;
    }
    if (site->closes) {
      const Span last{&place.token, sizeof place.token};
      PublishClose(&last, 1, place.token, device, site->devices);
    }
    StorePlace(place, next->untyped_data());
  });
}

// (token, *operands) -> (*results, token): one record of a callback. The results come when it has run in its turn;
// until then no thread waits.
ffi::Future Call(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans all(args, 0);
    const Place place = LoadPlace(all.data()[0].data, all.data()[0].size);
    Place next = place;
    if (site->kind == Kind::kOrdered) CountOn(next, device, place.speaks());
    StorePlace(rets, rets.size() - 1, next);

    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    // Unordered calls of one program may have one token: which are copies of each other cannot be told, so each device
    // asks for itself.
    const bool shared = (site->alike || place.has_part) && site->kind == Kind::kOrdered;
    const uint32_t reply = shared ? replies().ask_replicated(place, site->devices, std::move(waiting))
                                  : replies().ask(std::move(waiting), place.token);
    if (reply != 0 && !FailIfStopped(reply))
      publisher().publish(site->kind, site->site, place.token, device, all.data() + 1, all.size() - 1, site->flags,
                          reply);
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

// (*tokens) -> (*tokens): each device counts for itself from here on. The first `ordered` of the tokens count. With
// `parts`, the last operands are the number of the device's part, and its own among the copies there; for `skips` see
// Place.
ffi::Error Enter(int64_t ordered, int64_t devices, bool apart, bool parts, bool skips, int32_t device,
                 ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    Place inside;
    if ((inside.has_part = parts)) {
      std::memcpy(&inside.part, spans.data()[rets.size()].data, sizeof inside.part);
      std::memcpy(&inside.copy, spans.data()[rets.size() + 1].data, sizeof inside.copy);
      inside.skips = skips;
    }
    std::vector<Token> tokens;
    for (size_t i = 0; i < rets.size(); ++i) tokens.push_back(LoadToken(spans.data()[i]));
    const size_t count = static_cast<size_t>(ordered);
    for (size_t i = 0; i < count; ++i) ++tokens[i].phase;
    if (count != 0 && (inside.speaks() || skips))
      PublishEnter({tokens.data(), count * sizeof(Token)}, tokens[0], device, static_cast<uint32_t>(devices), apart);
    for (size_t i = 0; i < tokens.size(); ++i) {
      inside.token = tokens[i];
      if (i < count) inside.token.index = 0;
      StorePlace(rets, i, inside);
    }
  });
}

// (*tokens, *tokens at the entry) -> (*tokens): and ends it.
ffi::Error Leave(int64_t ordered, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    const size_t count = static_cast<size_t>(ordered);
    std::vector<Token> last;
    for (size_t i = 0; i < count; ++i) last.push_back(LoadToken(spans.data()[i]));
    const Span tokens{last.data(), count * sizeof(Token)};
    const Place first = LoadPlace(spans.data()[0].data, spans.data()[0].size);
    if (count != 0 && (first.speaks() || first.skips != 0))
      publisher().publish(Kind::kLeave, 0, last[0], device, &tokens, 1);
    for (size_t i = 0; i < rets.size(); ++i) {
      const Span &entry = spans.data()[rets.size() + i];
      Place around = LoadPlace(entry.data, entry.size);
      if (i < count) around.token.phase += 2;
      StorePlace(rets, i, around);
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
                           .Attr<bool>("parts")
                           .Attr<bool>("skips")
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
  static auto *const instance = new Replies();
  return *instance;
}

namespace {
constexpr size_t kPartSize = 4 * sizeof(uint32_t); // part, copy, turn, skips
}

Place LoadPlace(const void *data, size_t size) {
  if (size != sizeof(Token) && size != sizeof(Token) + kPartSize) throw std::invalid_argument(kWrongToken);
  Place place;
  std::memcpy(&place.token, data, sizeof(Token));
  if ((place.has_part = size != sizeof(Token)))
    std::memcpy(&place.part, static_cast<const std::byte *>(data) + sizeof(Token), kPartSize);
  return place;
}

void StorePlace(const Place &place, void *data) {
  std::memcpy(data, &place.token, sizeof(Token));
  if (place.has_part) std::memcpy(static_cast<std::byte *>(data) + sizeof(Token), &place.part, kPartSize);
}

void CountOn(Place &place, int32_t device, bool has_spoken) {
  if (place.skips != 0 && !has_spoken) publisher().publish(Kind::kSkip, 0, place.token, device, nullptr, 0);
  ++place.token.index;
  ++place.turn;
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
