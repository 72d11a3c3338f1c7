#include "bodies.h"

#include <cstring>
#include <utility>
#include <vector>

namespace effects {
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge) {
  publisher().publish(Kind::kEnter, devices, first, device, &tokens, 1, may_diverge ? kMayDiverge : 0);
}

void PublishLeave(const Span &tokens, const Token &first, int32_t device) {
  publisher().publish(Kind::kLeave, 0, first, device, &tokens, 1);
}

void CloseProgram(const Span &tokens, const Token &first, int32_t device, uint32_t devices) {
  PublishClose(tokens, first, device, devices);
  publisher().closed.note(first, devices);
}

Token EnterMarker(const Token &inside, const Token &around) {
  Token marker = inside;
  marker.index = around.index;
  return marker;
}

void PublishWhole(const LoadedSite &site, const Token &token, const Span *operands, size_t count,
                  const std::vector<Dims> &dims) {
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
  WholePayload whole = publisher().whole_values.add(token, shards, devices, may_wait,
                                                    [&] { return site.decide(kAllDevices, token) == Decision::kShow; });
  if (whole)
    publisher().publish(site.kind, site.site, token, kAllDevices, std::move(whole), site.flags & ~kReplicated);
  else if (whole.is_skipped && site.ordered())
    publisher().skip(token, kAllDevices);
}

DeviceToken NextOfCall(const LoadedSite &site, const DeviceToken &token) {
  DeviceToken next = token;
  if (site.ordered()) Take(kCountStep, next);
  return next;
}

void PublishCall(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands, size_t count,
                 Replies::Waiter waiter) {
  if (token.is_primary()) site.decide(device, token.token); // never left out, but counted
  const bool shared = site.has(kRecordIsReplicated) || token.has_group;
  // Unordered calls of a program may have equal tokens: their number in the program tells them apart.
  const CallOfDevice call{site.site, site.traits, device};
  if (site.together > 1)
    waiter = replies().with_others(token.token, call, site.together, site.fail_as_one, std::move(waiter));
  const uint32_t reply = shared ? replies().ask_replicated(token, site.devices, std::move(waiter),
                                                           site.ordered() ? nullptr : &call)
                                : replies().ask(std::move(waiter), token.token);
  if (reply != 0 && !FailIfStopped(reply))
    publisher().publish(site.kind, site.site, token.token, device, operands, count, site.flags, reply);
}

void PublishEnd(const Span *tokens, size_t count, int32_t device, uint32_t devices) {
  std::vector<Token> last;
  for (size_t i = 0; i < count; ++i) last.push_back(LoadToken(tokens[i]).token);
  CloseProgram({last.data(), last.size() * sizeof(Token)}, last[0], device, devices);
}

std::vector<DeviceToken> PublishEntrance(const Entrance &entrance, const Span *operands, int32_t device) {
  ReplicaNumbers numbers{};
  if (entrance.has_group) {
    const Span *const own = operands + entrance.num_tokens;
    std::memcpy(&numbers.group, own[0].data, sizeof numbers.group);
    std::memcpy(&numbers.replica, own[1].data, sizeof numbers.replica);
  }
  std::vector<DeviceToken> inside;
  std::vector<Token> markers;
  for (size_t i = 0; i < entrance.num_tokens; ++i) {
    const DeviceToken around = LoadToken(operands[i]);
    DeviceToken &token = inside.emplace_back(around, entrance.has_group, numbers);
    if (i >= entrance.ordered) continue;
    Take(kEnterStep, token);
    markers.push_back(EnterMarker(token.token, around.token));
  }
  if (!markers.empty() && numbers.replica == 0)
    PublishEnter({markers.data(), markers.size() * sizeof(Token)}, markers[0], device, entrance.devices,
                 entrance.may_diverge);
  return inside;
}

std::vector<DeviceToken> PublishExit(size_t num_tokens, size_t ordered, const Span *operands, int32_t device) {
  std::vector<Token> last;
  for (size_t i = 0; i < ordered; ++i) last.push_back(LoadToken(operands[i]).token);
  const DeviceToken first = LoadToken(operands[0]);
  if (ordered != 0 && first.is_primary())
    PublishLeave({last.data(), last.size() * sizeof(Token)}, last[0], device);
  std::vector<DeviceToken> behind;
  for (size_t i = 0; i < num_tokens; ++i) {
    behind.push_back(LoadToken(operands[num_tokens + i]));
    if (i < ordered) Take(kLeaveStep, behind.back());
  }
  return behind;
}

DeviceToken PublishSkip(uint32_t count, const Span &operand, int32_t device) {
  DeviceToken token = LoadToken(operand);
  if (token.is_primary())
    publisher().publish(Kind::kSkip, count, token.token, device, nullptr, 0);
  Take(Counts(count), token);
  return token;
}

void PublishPlainCall(const LoadedSite &site, int32_t device, const Span *operands, size_t count,
                      Replies::Waiter waiter) {
  site.decide(device, {});
  const uint32_t reply = replies().ask(std::move(waiter));
  if (!FailIfStopped(reply)) PublishPlain(site.site, site.ordered(), device, operands, count, site.flags, reply);
}

} // namespace effects
