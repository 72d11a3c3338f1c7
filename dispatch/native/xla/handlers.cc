// The handlers of records, of calls with results, and of the end of a program.
#include "handlers.h"

#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bodies.h"
#include "operands.h"

namespace effects {

namespace ffi = xla::ffi;

ffi::TypeId LoadedSite::id{};

namespace {

template <typename T>
T Attribute(const ffi::Dictionary &attributes, std::string_view name) {
  const auto value = attributes.get<T>(name);
  if (!value.has_value()) throw std::invalid_argument("a call lacks the attribute " + std::string(name));
  return *value;
}

// 0 if the call has no such attribute.
int64_t NumberIn(const ffi::Dictionary &attributes, std::string_view name) {
  return attributes.contains(name) ? Attribute<int64_t>(attributes, name) : 0;
}

} // namespace

SiteAttributes ReadSite(const ffi::Dictionary &attributes) {
  return {Attribute<int64_t>(attributes, attribute::kSite),
          Attribute<int64_t>(attributes, attribute::kTraits),
          Attribute<std::string_view>(attributes, attribute::kDescription),
          NumberIn(attributes, attribute::kAhead),
          NumberIn(attributes, attribute::kTogether),
          NumberIn(attributes, attribute::kFailAsOne),
          NumberIn(attributes, attribute::kOperands)};
}

LoadedSite::LoadedSite(const SiteAttributes &attributes)
    : site(static_cast<uint64_t>(attributes.site)), traits(attributes.traits),
      kind(has(kRecordIsOrdered) ? Kind::kOrdered : Kind::kUnordered),
      flags(static_cast<uint16_t>((has(kRecordIsCallback) ? kCallback : 0) |
                                  (has(kRecordIsReplicated) ? kReplicated : 0))),
      devices(DevicesOf(traits)), ahead(static_cast<uint32_t>(attributes.ahead)),
      together(static_cast<uint32_t>(attributes.together)), fail_as_one(attributes.fail_as_one != 0),
      operands(static_cast<size_t>(attributes.operands)) {
  if (publisher().refuses()) return; // its records will not be published
  sites().retain(site, attributes.description);
  filter = sites().filter(site);
}

LoadedSite::~LoadedSite() { drain().release_site(site); }

void *LoadedSiteTypeId() { return &LoadedSite::id; }
void *LoadedSiteTypeInfo() {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedSite>();
  return &info;
}

namespace {

// The sizes of each operand after the token.
std::vector<Dims> DimsOf(ffi::RemainingArgs args) {
  std::vector<Dims> dims;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto sizes = args.get<ffi::AnyBuffer>(i).value().dimensions();
    dims.push_back({sizes.begin(), sizes.size()});
  }
  return dims;
}

// (token, *operands) -> token: see PublishRecord(). A call that publishes several records has their operands one after
// the other.
ffi::Error Record(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::Buffer<ffi::U32> token,
                  ffi::RemainingArgs args, ffi::Result<ffi::Buffer<ffi::U32>> next) {
  return Guard([&] {
    DeviceToken own = site->token({token.untyped_data(), token.size_bytes()});
    Spans spans(args, 0);
    if (site->others.empty()) {
      PublishRecord(*site, device, own, spans.data(), spans.size(), [&] { return DimsOf(args); });
    } else {
      // Only whole values need their sizes, and a call that publishes several records has none.
      Span *next_operand = spans.data();
      const auto publish = [&](const LoadedSite &one) {
        PublishRecord(one, device, own, next_operand, one.operands, [] { return std::vector<Dims>(); });
        next_operand += one.operands;
      };
      publish(*site);
      for (const auto &other : site->others) publish(*other);
    }
    if (!site->has(kRecordIsCounted)) StoreToken(own, next->untyped_data());
  });
}

// (token, *operands) -> (*results, token): one record of a callback. The results come when it has run in its place in
// the order; no thread waits until then.
ffi::Future Call(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans all(args, 0);
    const DeviceToken token = site->token(all[0]), next = NextOfCall(*site, token);
    if (!site->has(kRecordIsCounted)) StoreToken(rets, rets.size() - 1, next);
    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    PublishCall(*site, device, token, all.data() + 1, all.size() - 1, std::move(waiting));
    return future;
  });
}

// (*tokens) -> token: the program will publish no more.
ffi::Error Close(int64_t devices, int32_t device, ffi::RemainingArgs tokens,
                 ffi::Result<ffi::Buffer<ffi::U32>> output) {
  return Guard([&] {
    Spans spans(tokens, 0);
    PublishEnd(spans.data(), spans.size(), device, static_cast<uint32_t>(devices));
    if (output->untyped_data() != spans[0].data) std::memcpy(output->untyped_data(), spans[0].data, kTokenSize);
  });
}

// (*tokens, *values) -> the values, aliased: they are available after the effects of the tokens.
ffi::Error After(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

// (*operands) -> nothing, or with an XLA token in and out: a record of a program that was not dispatched by
// `effects.jit`. XLA orders these; the epoch is opened here.
ffi::Error Plain(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands, ffi::RemainingRets) {
  return Guard([&] {
    Spans spans(operands, site->ordered() ? 1 : 0);
    if (site->shows(device, {}, spans.data()) == Decision::kShow)
      PublishPlain(site->site, site->ordered(), device, spans.data(), spans.size(), site->flags);
  });
}

// As `Plain`, with results.
ffi::Future PlainCall(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands,
                      ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans spans(operands, site->ordered() ? 1 : 0);
    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    PublishPlainCall(*site, device, spans.data(), spans.size(), std::move(waiting));
    return future;
  });
}

// When a program is loaded: registers its sites, so that programs compiled elsewhere work.
ffi::ErrorOr<std::unique_ptr<LoadedSite>> RegisterSite(ffi::Dictionary attributes) {
  try {
    auto site = std::make_unique<LoadedSite>(ReadSite(attributes));
    if (!attributes.contains(attribute::kOthers)) return site;
    const auto others = Attribute<ffi::Dictionary>(attributes, attribute::kOthers);
    for (size_t at = 0; at < others.size(); ++at)
      site->others.push_back(
          std::make_unique<LoadedSite>(ReadSite(Attribute<ffi::Dictionary>(others, std::to_string(at)))));
    return site;
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A site could not be registered: ") + error.what()));
  }
}

XLA_FFI_DEFINE_HANDLER(kRegisterSite, RegisterSite, ffi::Ffi::BindInstantiate().Attrs());
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
XLA_FFI_DEFINE_HANDLER(kClose, Close,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>(attribute::kDevices)
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .Ret<ffi::Buffer<ffi::U32>>());
XLA_FFI_DEFINE_HANDLER(kAfter, After, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kPlain, Plain,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kPlainCall, PlainCall,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());

} // namespace

void *LoadSiteHandler() { return reinterpret_cast<void *>(kRegisterSite); }

const std::vector<Handler> &handlers() {
  static constexpr char kLoad[] = "instantiate", kRun[] = "execute";
  const auto pointer = [](auto *handler) { return reinterpret_cast<void *>(handler); };
  static const auto *const all = [&] {
    auto *const handlers = new std::vector<Handler>{
        {kRecordTarget, kLoad, pointer(kRegisterSite)},
        {kRecordTarget, kRun, pointer(kRecord)},
        {kCallTarget, kLoad, pointer(kRegisterSite)},
        {kCallTarget, kRun, pointer(kCall)},
        {kCloseTarget, kRun, pointer(kClose)},
        {kEnterTarget, kRun, EnterHandler()},
        {kLeaveTarget, kRun, LeaveHandler()},
        {kSkipTarget, kRun, SkipHandler()},
        {kAfterTarget, kRun, pointer(kAfter)},
        {kPlainTarget, kLoad, pointer(kRegisterSite)},
        {kPlainTarget, kRun, pointer(kPlain)},
        {kPlainCallTarget, kLoad, pointer(kRegisterSite)},
        {kPlainCallTarget, kRun, pointer(kPlainCall)},
    };
    return handlers;
  }();
  return *all;
}

} // namespace effects
