#include "bodies.h"

#include <cstring>
#include <utility>

namespace effects {
namespace {

// A device begins to count for itself. The tokens are those of the region, but for their index.
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge) {
  publisher().publish(Kind::kEnter, devices, first, device, &tokens, 1, may_diverge ? kMayDiverge : 0);
}

// And ends it. They are those behind its last effects.
void PublishLeave(const Span &tokens, const Token &first, int32_t device) {
  publisher().publish(Kind::kLeave, 0, first, device, &tokens, 1);
}

void CloseProgram(const Span &tokens, const Token &first, int32_t device, uint32_t devices) {
  PublishClose(tokens, first, device, devices);
  publisher().closed.note(first, devices);
}

// In a region, with the index of the token around it.
Token EnterMarker(const DeviceToken &inside, const DeviceToken &around) {
  Token marker = inside.token;
  marker.index = around.token.index;
  return marker;
}

// Of a record with one value from all devices: copies this device's shards, and publishes if it is the last device. The
// row says how many devices copy something, and then of each operand what `Shard` says.
void PublishWhole(const LoadedSite &site, const Token &token, const Span *operands, size_t count, const Dims *dims) {
  const auto *numbers = static_cast<const int32_t *>(operands[0].data);
  const auto devices = static_cast<uint32_t>(*numbers++);
  std::vector<Shard> shards;
  bool copies = false;
  for (size_t i = 1; i < count; ++i) {
    size_t elements = 1;
    for (size_t axis = 0; axis < dims[i].rank; ++axis) elements *= static_cast<size_t>(dims[i].sizes[axis]);
    const size_t item = elements == 0 ? 0 : operands[i].size / elements;
    shards.push_back({static_cast<const std::byte *>(operands[i].data), item, dims[i].rank, dims[i].sizes, numbers});
    copies = copies || shards.back().is_copied();
    numbers += 1 + 3 * dims[i].rank;
  }
  if (!copies) return;
  const bool may_wait = publisher().when_full.load(std::memory_order_relaxed) == WhenFull::kWait;
  if (WholePayload whole = publisher().whole_values.add(token, shards, devices, may_wait))
    publisher().publish(site.kind, site.site, token, kAllDevices, std::move(whole), site.flags & ~kReplicated);
}

} // namespace

DeviceToken PublishRecord(const LoadedSite &site, int32_t device, DeviceToken own, Span *operands, size_t count,
                          const Dims *dims) {
  const bool enters = site.has(kRecordEnters), leaves = site.has(kRecordLeaves);
  size_t before = leaves && !enters ? 1 : 0;
  DeviceToken around = before != 0 ? LoadToken(operands[0]) : own;
  if (enters) {
    Take(kEnterStep, own);
    const Token marker = EnterMarker(own, around);
    PublishEnter({&marker, sizeof marker}, marker, device, site.devices, site.has(kRecordMayDiverge));
  }
  bool is_primary = own.is_primary();
  if (site.has_whole_values()) {
    PublishWhole(site, own.token, operands, count, dims);
    CountOn(own, device, /*has_published=*/true);
    is_primary = false;
  } else if (site.has(kRecordHasShards)) {
    Span &row = operands[0];
    int32_t is_first;
    std::memcpy(&is_first, row.data, sizeof is_first);
    is_primary = is_first != 0;
    row = {static_cast<const std::byte *>(row.data) + sizeof is_first, row.size - sizeof is_first};
    before = row.size == 0 ? 1 : 0;
  }
  if (is_primary)
    publisher().publish(site.kind, site.site, own.token, device, operands + before, count - before, site.flags);
  if (site.ordered() && (is_primary || own.has_group)) CountOn(own, device, is_primary);
  if (leaves) {
    PublishLeave({&own.token, sizeof own.token}, own.token, device);
    own.token = around.token;
    Take(kLeaveStep, own);
  }
  if (site.has(kRecordCloses)) CloseProgram({&own.token, sizeof own.token}, own.token, device, site.devices);
  return own;
}

DeviceToken NextOfCall(const LoadedSite &site, int32_t device, const DeviceToken &token) {
  DeviceToken next = token;
  if (site.ordered()) CountOn(next, device, token.is_primary());
  return next;
}

void PublishCall(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands, size_t count,
                 Replies::Waiter waiter) {
  const bool shared = site.has(kRecordIsReplicated) || token.has_group;
  // Unordered calls of one program may have one token: their number in the program tells them apart.
  const UnorderedCall call{site.site, site.traits, device};
  const uint32_t reply = !shared          ? replies().ask(std::move(waiter), token.token)
                         : site.ordered() ? replies().ask_replicated(token, site.devices, std::move(waiter))
                                          : replies().ask_replicated(token, site.devices, call, std::move(waiter));
  if (reply != 0 && !FailIfStopped(reply))
    publisher().publish(site.kind, site.site, token.token, device, operands, count, site.flags, reply);
}

void PublishEnd(const Span *tokens, size_t count, int32_t device, uint32_t devices) {
  std::vector<Token> last;
  for (size_t i = 0; i < count; ++i) last.push_back(LoadToken(tokens[i]).token);
  CloseProgram({last.data(), last.size() * sizeof(Token)}, last[0], device, devices);
}

std::vector<DeviceToken> PublishEntrance(const Entrance &entrance, const Span *operands, int32_t device) {
  DeviceToken numbers;
  if ((numbers.has_group = entrance.has_group)) {
    const Span *const own = operands + entrance.num_tokens;
    std::memcpy(&numbers.replicas.group, own[0].data, sizeof numbers.replicas.group);
    std::memcpy(&numbers.replicas.replica, own[1].data, sizeof numbers.replicas.replica);
    numbers.replicas.announces_skips = entrance.announces_skips;
  }
  std::vector<DeviceToken> inside;
  std::vector<Token> markers;
  for (size_t i = 0; i < entrance.num_tokens; ++i) {
    const DeviceToken around = LoadToken(operands[i]);
    DeviceToken &token = inside.emplace_back(numbers);
    token.token = around.token;
    if (i >= entrance.ordered) continue;
    Take(kEnterStep, token);
    markers.push_back(EnterMarker(token, around));
  }
  if (!markers.empty() && (numbers.is_primary() || entrance.announces_skips))
    PublishEnter({markers.data(), markers.size() * sizeof(Token)}, markers[0], device, entrance.devices,
                 entrance.may_diverge);
  return inside;
}

std::vector<DeviceToken> PublishExit(size_t num_tokens, size_t ordered, const Span *operands, int32_t device) {
  std::vector<Token> last;
  for (size_t i = 0; i < ordered; ++i) last.push_back(LoadToken(operands[i]).token);
  const DeviceToken first = LoadToken(operands[0]);
  if (ordered != 0 && (first.is_primary() || first.replicas.announces_skips != 0))
    PublishLeave({last.data(), last.size() * sizeof(Token)}, last[0], device);
  std::vector<DeviceToken> behind;
  for (size_t i = 0; i < num_tokens; ++i) {
    behind.push_back(LoadToken(operands[num_tokens + i]));
    if (i < ordered) Take(kLeaveStep, behind.back());
  }
  return behind;
}

void PublishUntrackedCall(const LoadedSite &site, int32_t device, const Span *operands, size_t count,
                          Replies::Waiter waiter) {
  const uint32_t reply = replies().ask(std::move(waiter));
  if (!FailIfStopped(reply)) PublishUntracked(site.site, site.ordered(), device, operands, count, site.flags, reply);
}

} // namespace effects
