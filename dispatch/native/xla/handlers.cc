// The handlers of records, of calls with results, and of the end of a program.
#include "handlers.h"

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "operands.h"

namespace effects {

namespace ffi = xla::ffi;

ffi::TypeId LoadedSite::id{};

LoadedSite::LoadedSite(int64_t site_id, int64_t traits, std::string_view description)
    : site(static_cast<uint64_t>(site_id)), traits(traits),
      kind(has(kRecordIsOrdered) ? Kind::kOrdered : Kind::kUnordered),
      flags(static_cast<uint16_t>((has(kRecordIsCallback) ? kCallback : 0) |
                                  (has(kRecordIsReplicated) ? kReplicated : 0))),
      devices(DevicesOf(traits)) {
  if (!publisher().refuses()) sites().retain(site, description); // else nothing of it will be published
}

LoadedSite::~LoadedSite() { drain().release_site(site); }

void *LoadedSiteTypeId() { return &LoadedSite::id; }
void *LoadedSiteTypeInfo() {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedSite>();
  return &info;
}

namespace {

void CloseProgram(const Span &tokens, const Token &first, int32_t device, uint32_t devices) {
  PublishClose(tokens, first, device, devices);
  publisher().closed.note(first, devices);
}

// Of a record with one value from all devices: copies this device's shards, and publishes if it is the last device. The
// row says how many devices copy something, and then of each operand what `Shard` says.
void PublishWhole(const LoadedSite &site, const Token &token, ffi::RemainingArgs args) {
  const auto row = args.get<ffi::AnyBuffer>(0);
  if (!row.has_value()) throw std::runtime_error("an operand is not a buffer");
  const auto *numbers = static_cast<const int32_t *>(row->untyped_data());
  const auto devices = static_cast<uint32_t>(*numbers++);
  std::vector<Shard> shards;
  bool copies = false;
  for (size_t i = 1; i < args.size(); ++i) {
    const auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) throw std::runtime_error("an operand is not a buffer");
    const auto sizes = buffer->dimensions();
    const size_t count = buffer->element_count(), item = count == 0 ? 0 : buffer->size_bytes() / count;
    shards.push_back(
        {static_cast<const std::byte *>(buffer->untyped_data()), item, sizes.size(), sizes.begin(), numbers});
    copies = copies || shards.back().is_copied();
    numbers += 1 + 3 * sizes.size();
  }
  if (!copies) return;
  const bool may_wait = publisher().when_full.load(std::memory_order_relaxed) == WhenFull::kWait;
  if (WholePayload whole = publisher().whole_values.add(token, shards, devices, may_wait))
    publisher().publish(site.kind, site.site, token, kAllDevices, std::move(whole), site.flags & ~kReplicated);
}

// (token, *operands) -> token: one record. The first of a region takes the token around it; the last gives that back,
// and takes it behind its own if it is not the first too. Of what is sharded, the first operand is a row of numbers:
// whether this device is primary, as the first of those that have the same shards, and what the record begins with.
ffi::Error Record(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::Buffer<ffi::U32> token,
                  ffi::RemainingArgs args, ffi::Result<ffi::Buffer<ffi::U32>> next) {
  return Guard([&] {
    DeviceToken own = LoadToken(token.untyped_data(), token.size_bytes());
    Spans spans(args, 0);
    const bool enters = site->has(kRecordEnters), leaves = site->has(kRecordLeaves);
    size_t before = leaves && !enters ? 1 : 0;
    Token around = before != 0 ? LoadToken(spans[0]).token : own.token;
    if (enters) {
      ++own.token.phase;
      PublishEnter({&own.token, sizeof own.token}, own.token, device, site->devices, site->has(kRecordMayDiverge));
      own.token.index = 0;
    }
    bool is_primary = own.is_primary();
    if (site->has(kRecordHasShards) && site->has(kRecordIsReplicated)) {
      PublishWhole(*site, own.token, args);
      CountOn(own, device, /*has_published=*/true);
      is_primary = false;
    } else if (site->has(kRecordHasShards)) {
      Span &row = spans[0];
      int32_t is_first;
      std::memcpy(&is_first, row.data, sizeof is_first);
      is_primary = is_first != 0;
      row = {static_cast<const std::byte *>(row.data) + sizeof is_first, row.size - sizeof is_first};
      before = row.size == 0 ? 1 : 0;
    }
    if (is_primary)
      publisher().publish(site->kind, site->site, own.token, device, spans.data() + before, spans.size() - before,
                          site->flags);
    if (site->ordered() && (is_primary || own.has_group)) CountOn(own, device, is_primary);
    if (leaves) {
      PublishLeave({&own.token, sizeof own.token}, own.token, device);
      around.phase += 2;
      own.token = around;
    }
    if (site->has(kRecordCloses)) CloseProgram({&own.token, sizeof own.token}, own.token, device, site->devices);
    StoreToken(own, next->untyped_data());
  });
}

// (token, *operands) -> (*results, token): one record of a callback. The results come when it has run in its place;
// until then no thread waits.
ffi::Future Call(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans all(args, 0);
    const DeviceToken token = LoadToken(all[0]);
    DeviceToken next = token;
    if (site->ordered()) CountOn(next, device, token.is_primary());
    StoreToken(rets, rets.size() - 1, next);

    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    const bool shared = site->has(kRecordIsReplicated) || token.has_group;
    // Unordered calls of one program may have one token: their number in the program tells them apart.
    const UnorderedCall call{site->site, site->traits, device};
    const uint32_t reply = !shared           ? replies().ask(std::move(waiting), token.token)
                           : site->ordered() ? replies().ask_replicated(token, site->devices, std::move(waiting))
                                             : replies().ask_replicated(token, site->devices, call, std::move(waiting));
    if (reply != 0 && !FailIfStopped(reply))
      publisher().publish(site->kind, site->site, token.token, device, all.data() + 1, all.size() - 1, site->flags,
                          reply);
    return future;
  });
}

// (*tokens) -> token: the program has published all it will.
ffi::Error Close(int64_t devices, int32_t device, ffi::RemainingArgs tokens,
                 ffi::Result<ffi::Buffer<ffi::U32>> output) {
  return Guard([&] {
    Spans spans(tokens, 0);
    std::vector<Token> last;
    for (size_t i = 0; i < spans.size(); ++i) last.push_back(LoadToken(spans[i]).token);
    CloseProgram({last.data(), last.size() * sizeof(Token)}, last[0], device, static_cast<uint32_t>(devices));
    std::memcpy(output->typed_data(), &last[0], sizeof last[0]);
  });
}

// (token) -> token: goes on when the programs before are over that call handlers in the same domain.
ffi::Future Gate(int64_t domain, int64_t devices, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return GuardFuture([&] {
    const DeviceToken token = LoadToken(Spans(args, 0)[0]);
    StoreToken(rets, 0, token);
    ffi::Promise promise;
    ffi::Future future(promise);
    gates().pass(ThreadOf(token.token), token.token.epoch, static_cast<uint32_t>(devices), domain,
                 [promise]() mutable { promise.SetAvailable(); });
    return future;
  });
}

// (*tokens, *values) -> the values, in the same memory: they are there after what the tokens stand for.
ffi::Error After(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

// (*operands) -> nothing, or with the runtime's own token in and out: a record of a program that was not dispatched by
// `effects.jit`. The runtime orders these; the number is given here.
ffi::Error Untracked(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands,
                     ffi::RemainingRets) {
  return Guard([&] {
    Spans spans(operands, site->ordered() ? 1 : 0);
    PublishUntracked(site->site, site->ordered(), device, spans.data(), spans.size(), site->flags);
  });
}

// As `Untracked`, with results.
ffi::Future UntrackedCall(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs operands,
                          ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans spans(operands, site->ordered() ? 1 : 0);
    Waiting waiting(rets);
    ffi::Future future = waiting.future();
    const uint32_t reply = replies().ask(std::move(waiting));
    if (FailIfStopped(reply)) return future;
    PublishUntracked(site->site, site->ordered(), device, spans.data(), spans.size(), site->flags, reply);
    return future;
  });
}

// When a program is loaded: its sites are registered, so that one compiled elsewhere is understood here.
ffi::ErrorOr<std::unique_ptr<LoadedSite>> RegisterSite(int64_t site, int64_t traits, std::string_view description) {
  try {
    return std::make_unique<LoadedSite>(site, traits, description);
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A site could not be registered: ") + error.what()));
  }
}

XLA_FFI_DEFINE_HANDLER(
    kRegisterSite, RegisterSite,
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
XLA_FFI_DEFINE_HANDLER(
    kGate, Gate,
    ffi::Ffi::Bind().Attr<int64_t>("domain").Attr<int64_t>("devices").RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kAfter, After, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kUntracked, Untracked,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(
    kUntrackedCall, UntrackedCall,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());

} // namespace

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
      {kGateTarget, kRun, pointer(kGate)},
      {kEnterTarget, kRun, EnterHandler()},
      {kLeaveTarget, kRun, LeaveHandler()},
      {kAfterTarget, kRun, pointer(kAfter)},
      {kUntrackedTarget, kLoad, pointer(kRegisterSite)},
      {kUntrackedTarget, kRun, pointer(kUntracked)},
      {kUntrackedCallTarget, kLoad, pointer(kRegisterSite)},
      {kUntrackedCallTarget, kRun, pointer(kUntrackedCall)},
      {kBeginTarget, kLoad, pointer(kRegisterSite)},
    };
    for (const Handler &handler : OperationHandlers()) handlers->push_back(handler);
    return handlers;
  }();
  return *all;
}

} // namespace effects
