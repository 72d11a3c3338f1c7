// The handlers with which devices begin and end to count for themselves.
#include <cstring>
#include <vector>

#include "handlers.h"
#include "operands.h"

namespace effects {

namespace ffi = xla::ffi;

void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge) {
  publisher().publish(Kind::kEnter, devices, first, device, &tokens, 1, may_diverge ? kMayDiverge : 0);
}

void PublishLeave(const Span &tokens, const Token &first, int32_t device) {
  publisher().publish(Kind::kLeave, 0, first, device, &tokens, 1);
}

namespace {

// (*tokens) -> (*tokens): each device counts for itself from here on. The first `ordered` of the tokens count. With
// `parts`, the last operands are the number of the device's group of replicas, and its own within that; for `skips` see
// ReplicaNumbers.
ffi::Error Enter(int64_t ordered, int64_t devices, bool apart, bool parts, bool skips, int32_t device,
                 ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    DeviceToken inside;
    if ((inside.has_group = parts)) {
      std::memcpy(&inside.replicas.group, spans[rets.size()].data, sizeof inside.replicas.group);
      std::memcpy(&inside.replicas.replica, spans[rets.size() + 1].data, sizeof inside.replicas.replica);
      inside.replicas.announces_skips = skips;
    }
    std::vector<Token> tokens;
    for (size_t i = 0; i < rets.size(); ++i) tokens.push_back(LoadToken(spans[i]).token);
    const size_t count = static_cast<size_t>(ordered);
    for (size_t i = 0; i < count; ++i) ++tokens[i].phase;
    if (count != 0 && (inside.is_primary() || skips))
      PublishEnter({tokens.data(), count * sizeof(Token)}, tokens[0], device, static_cast<uint32_t>(devices), apart);
    for (size_t i = 0; i < tokens.size(); ++i) {
      inside.token = tokens[i];
      if (i < count) inside.token.index = 0;
      StoreToken(rets, i, inside);
    }
  });
}

// (*tokens, *tokens at the entry) -> (*tokens): and ends it.
ffi::Error Leave(int64_t ordered, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard([&] {
    Spans spans(args, 0);
    const size_t count = static_cast<size_t>(ordered);
    std::vector<Token> last;
    for (size_t i = 0; i < count; ++i) last.push_back(LoadToken(spans[i]).token);
    const DeviceToken first = LoadToken(spans[0]);
    if (count != 0 && (first.is_primary() || first.replicas.announces_skips != 0))
      PublishLeave({last.data(), count * sizeof(Token)}, last[0], device);
    for (size_t i = 0; i < rets.size(); ++i) {
      DeviceToken around = LoadToken(spans[rets.size() + i]);
      if (i < count) around.token.phase += 2;
      StoreToken(rets, i, around);
    }
  });
}

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

} // namespace

void *EnterHandler() { return reinterpret_cast<void *>(kEnter); }
void *LeaveHandler() { return reinterpret_cast<void *>(kLeave); }

} // namespace effects
