// The handlers by which devices enter and leave regions, and skip indices.
#include <vector>

#include "bodies.h"
#include "handlers.h"
#include "operands.h"
#include "region_bindings.h"

namespace effects {

namespace ffi = xla::ffi;

namespace {

// (*tokens) -> (*tokens): see PublishEntrance(). If the program counts (`counted`), tokens are returned unchanged.
ffi::Error Enter(int64_t ordered, int64_t devices, bool apart, bool parts, bool counted, int32_t device,
                 ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    const Entrance entrance{rets.size(), static_cast<size_t>(ordered), static_cast<uint32_t>(devices), apart, parts};
    const std::vector<DeviceToken> inside = PublishEntrance(entrance, spans.data(), device);
    for (size_t i = 0; !counted && i < rets.size(); ++i) StoreToken(rets, i, inside[i]);
  });
}

// (*tokens, *tokens at the entry) -> (*tokens): see PublishExit(). If `counted`, the tokens at the entry are returned
// unchanged.
ffi::Error Leave(int64_t ordered, bool counted, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    const std::vector<DeviceToken> behind =
        PublishExit(rets.size(), static_cast<size_t>(ordered), spans.data(), device);
    for (size_t i = 0; !counted && i < rets.size(); ++i) StoreToken(rets, i, behind[i]);
  });
}

// (token) -> (token): see PublishSkip(). If `counted`, the token is returned unchanged.
ffi::Error Skip(int64_t count, bool counted, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    const DeviceToken next = PublishSkip(static_cast<uint32_t>(count), Spans(args, 0)[0], device);
    if (!counted) StoreToken(rets, 0, next);
  });
}

XLA_FFI_DEFINE_HANDLER(kEnter, Enter, BindEnter<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kLeave, Leave, BindLeave<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kSkip, Skip, BindSkip<ffi::DeviceOrdinal>().RemainingArgs().RemainingRets());

} // namespace

void *EnterHandler() { return reinterpret_cast<void *>(kEnter); }
void *LeaveHandler() { return reinterpret_cast<void *>(kLeave); }
void *SkipHandler() { return reinterpret_cast<void *>(kSkip); }

} // namespace effects
