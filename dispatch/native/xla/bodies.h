// The bodies of handlers, for all platforms: CPU handlers pass the device's memory, CUDA handlers copies of it.
// Operands are as in the program, tokens first.
//
// Called by the publishing thread: the device's own, or the one that runs a stream's host functions. An exception is
// the call's error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../drain/replies.h"
#include "../producer/bytes.h"
#include "../producer/device_token.h"
#include "handlers.h"

namespace effects {

// The sizes of an operand along its axes.
struct Dims {
  const int64_t *sizes;
  size_t rank;
};

// Parts of the functions below.

// A device enters a region. The tokens are those of the region, except for their index.
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge);
// A device leaves a region. The tokens are those after its last effects.
void PublishLeave(const Span &tokens, const Token &first, int32_t device);
void CloseProgram(const Span &tokens, const Token &first, int32_t device, uint32_t devices);
// The token inside a region with the index of the token around it.
Token EnterMarker(const Token &inside, const Token &around);
// For a record with one value over all devices: copies this device's shards, and publishes if it is the last device.
// `row`: the number of devices that copy, then the numbers of a `Shard` per operand.
void PublishWhole(const LoadedSite &site, const Token &token, const Span *operands, size_t count,
                  const std::vector<Dims> &dims);

// (token, *operands): one record. The first of a region takes the token around it; the last returns that, and unless it
// is the first too, takes it after the device's own. If the value is sharded, the first operand is a row of numbers:
// true if this device is primary, the first of those with equal shards; then the record's first values. `own`: the
// token, which is advanced. The spans are the operands after it; `dims_of()` returns their sizes, for records of whole
// values. Inline: called for every record.
template <typename DimsOf>
void PublishRecord(const LoadedSite &site, int32_t device, DeviceToken &own, Span *operands, size_t count,
                   DimsOf &&dims_of) {
  const bool enters = site.has(kRecordEnters), leaves = site.has(kRecordLeaves);
  size_t before = leaves && !enters ? 1 : 0;
  Token around = before != 0 ? LoadToken(operands[0]).token : own.token;
  if (enters) {
    Take(kEnterStep, own);
    const Token marker = EnterMarker(own.token, around);
    PublishEnter({&marker, sizeof marker}, marker, device, site.devices, site.has(kRecordMayDiverge));
  }
  bool is_primary = own.is_primary();
  if (site.has_whole_values()) {
    PublishWhole(site, own.token, operands, count, dims_of());
    Take(kCountStep, own);
    is_primary = false;
  } else if (site.has(kRecordHasShards)) {
    Span &row = operands[0];
    int32_t is_first;
    std::memcpy(&is_first, row.data, sizeof is_first);
    is_primary = is_first != 0;
    row = {static_cast<const std::byte *>(row.data) + sizeof is_first, row.size - sizeof is_first};
    before = row.size == 0 ? 1 : 0;
  }
  if (is_primary) {
    const Decision decision = site.shows(device, own.token, operands + before);
    if (decision == Decision::kShow)
      publisher().publish(site.kind, site.site, own.token, device, operands + before, count - before, site.flags);
    else if (decision == Decision::kLeaveOut && site.ordered())
      publisher().skip(own.token, device);
  }
  if (site.ordered() && (is_primary || own.has_group)) Take(kCountStep, own);
  if (leaves) {
    PublishLeave({&own.token, sizeof own.token}, own.token, device);
    Take(kLeaveStep, around);
    own.token = around;
  }
  if (site.has(kRecordCloses)) CloseProgram({&own.token, sizeof own.token}, own.token, device, site.devices);
}

// (token, *operands): one record of a callback. `waiter` gets the answer.
void PublishCall(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands, size_t count,
                 Replies::Waiter waiter);
// The token after it, which must be written before the answer comes.
DeviceToken NextOfCall(const LoadedSite &site, const DeviceToken &token);

// (*tokens): the program will publish no more.
void PublishEnd(const Span *tokens, size_t count, int32_t device, uint32_t devices);

// The attributes of an entry into a region.
struct Entrance {
  size_t num_tokens;
  size_t ordered; // the number of tokens that count
  uint32_t devices;
  bool may_diverge;
  bool has_group; // after the tokens come the number of the device's replica group, and its number in the group
};
// (*tokens, ...): the device enters a region. Returns the tokens inside.
std::vector<DeviceToken> PublishEntrance(const Entrance &entrance, const Span *operands, int32_t device);
// (*tokens, *tokens at the entry): the device leaves it. Returns the tokens after the region.
std::vector<DeviceToken> PublishExit(size_t num_tokens, size_t ordered, const Span *operands, int32_t device);
// (token): the device has no effects at the next `count` indices. Returns the token after them.
DeviceToken PublishSkip(uint32_t count, const Span &operand, int32_t device);

// As PublishCall(), for a program that was not dispatched by `effects.jit`.
void PublishPlainCall(const LoadedSite &site, int32_t device, const Span *operands, size_t count,
                      Replies::Waiter waiter);

} // namespace effects
