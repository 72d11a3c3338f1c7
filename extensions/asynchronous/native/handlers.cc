// The handlers that start and end asynchronous operations.
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"
#include "bodies.h"
#include "dispatch/native/xla/handlers.h"
#include "dispatch/native/xla/operands.h"
#include "operations.h"
#include "ticket.h"

namespace effects {

namespace ffi = xla::ffi;

namespace {

// Returns a ticket for each lane; the token is returned unchanged.
void ReturnTickets(uint32_t number, const DeviceToken &token, ffi::RemainingRets rets) {
  auto tickets = rets.get<ffi::AnyBuffer>(0).value();
  StoreTickets(static_cast<float *>(tickets->untyped_data()), tickets->element_count() / kTicketLength, number);
  StoreToken(rets, 1, token);
}

// (token, *operands) -> (tickets, token): see BeginHostRun().
ffi::Error Begin(LoadedSite *site, ffi::Dictionary, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans all(args, 0);
    const DeviceToken token = LoadToken(all[0]);
    ReturnTickets(BeginHostRun(*site, device, token, all.data() + 1, all.size() - 1), token, rets);
  });
}

// (token, *values) -> (tickets, token): keeps the values until the operation is done; `by_lane`: per lane. `optional`:
// it may never be done.
ffi::Error Keep(bool by_lane, bool optional, std::string_view name, int32_t device, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  return Guard([&] {
    Spans all(args, 0);
    const DeviceToken token = LoadToken(all[0]);
    const size_t lanes = LanesOf(rets.get<ffi::AnyBuffer>(0).value()->size_bytes(), by_lane);
    ReturnTickets(KeepValues(device, token.token, all.data() + 1, all.size() - 1, lanes, optional, name), token, rets);
  });
}

// (token, rank, group, *values) -> (tickets, token): sends parts to other devices. `to` has each rank's receiver, or
// -1, and `from` its sender; if both are empty, each value has a part for each rank.
ffi::Error Post(int64_t call, ffi::Span<const int64_t> to, ffi::Span<const int64_t> from, int64_t size, bool optional,
                std::string_view name, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans all(args, 0);
    const DeviceToken token = LoadToken(all[0]);
    Exchange exchange{call, 0, 0, {}, {}};
    std::memcpy(&exchange.rank, all[1].data, sizeof exchange.rank);
    std::memcpy(&exchange.group, all[2].data, sizeof exchange.group);
    const std::vector<Span> values(all.data() + 3, all.data() + all.size());
    if (to.size() != 0) {
      if (to[exchange.rank] >= 0) exchange.sent.push_back({static_cast<uint32_t>(to[exchange.rank]), values});
      if (from[exchange.rank] >= 0) exchange.senders.push_back(static_cast<uint32_t>(from[exchange.rank]));
    } else {
      for (uint32_t rank = 0; rank < size; ++rank) {
        std::vector<Span> parts;
        for (const Span &value : values) {
          const size_t each = value.size / static_cast<size_t>(size);
          parts.push_back({static_cast<const std::byte *>(value.data) + rank * each, each});
        }
        exchange.sent.push_back({rank, std::move(parts)});
        exchange.senders.push_back(rank);
      }
    }
    const uint32_t number = operations().post(ProgramOf(token.token), device, exchange, optional);
    NoteStart(device, token.token, number, name);
    ReturnTickets(number, token, rets);
  });
}

// (token, tickets) -> (*values, token): see TakeResults().
ffi::Future Take(bool by_lane, std::string_view where, int32_t device, ffi::RemainingArgs args,
                 ffi::RemainingRets rets) {
  return GuardFuture([&] {
    Spans all(args, 0);
    const DeviceToken token = LoadToken(all[0]);
    StoreToken(rets, rets.size() - 1, token);
    // One more than there are lanes: this thread may end the last lane, and there may be no lanes.
    ffi::CountDownPromise promise(static_cast<int64_t>(LanesOf(all[1].size, by_lane)) + 1);
    ffi::Future future(promise);
    TakeResults(device, token.token, all[1], by_lane, where, OutsOf(rets), [promise](const std::string &error) mutable {
      promise.CountDown(1, error.empty() ? ffi::Error::Success() : ffi::Error::Internal(error));
    });
    promise.CountDown(1);
    return future;
  });
}

XLA_FFI_DEFINE_HANDLER(
    kBegin, Begin,
    ffi::Ffi::Bind().Ctx<ffi::State<LoadedSite>>().Attrs().Ctx<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kKeep, Keep, BindKeep<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kPost, Post,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>(attribute::kCall)
                           .Attr<ffi::Span<const int64_t>>(attribute::kTo)
                           .Attr<ffi::Span<const int64_t>>(attribute::kFrom)
                           .Attr<int64_t>(attribute::kSize)
                           .Attr<bool>(attribute::kOptional)
                           .Attr<std::string_view>(attribute::kName)
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kTake, Take, BindTake<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());

} // namespace

std::vector<Handler> OperationHandlers() {
  const auto pointer = [](auto *handler) { return reinterpret_cast<void *>(handler); };
  return {{kBeginTarget, "instantiate", LoadSiteHandler()},
          {kBeginTarget, "execute", pointer(kBegin)},
          {kKeepTarget, "execute", pointer(kKeep)},
          {kPostTarget, "execute", pointer(kPost)},
          {kTakeTarget, "execute", pointer(kTake)}};
}

} // namespace effects
