// What handlers publish, wherever their operands lie: the handlers of CPUs hand over the device's own memory, those of
// CUDA copies of it. Operands are as the program gives them, with the tokens in front.
//
// The thread that publishes calls everything here: the device's own, or the one that runs a stream's host functions.
// What is thrown is the call's error.
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

// Parts of what follows.

// A device begins to count for itself. The tokens are those of the region, but for their index.
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge);
// And ends it. They are those behind its last effects.
void PublishLeave(const Span &tokens, const Token &first, int32_t device);
void CloseProgram(const Span &tokens, const Token &first, int32_t device, uint32_t devices);
// The token inside of a region with the index of the token around it.
Token EnterMarker(const Token &inside, const Token &around);
// Of a record with one value from all devices: copies this device's shards, and publishes if it is the last device. The
// row says how many devices copy something, and then of each operand what `Shard` says.
void PublishWhole(const LoadedSite &site, const Token &token, const Span *operands, size_t count,
                  const std::vector<Dims> &dims);

// (token, *operands): one record. The first of a region takes the token around it; the last gives that back, and takes
// it behind its own if it is not the first too. Of what is sharded, the first operand is a row of numbers: whether this
// device is primary, as the first of those that have the same shards, and what the record begins with. `own` is the
// token; the spans are those behind it, and `dims_of()` gives theirs, for records of whole values. Makes the next
// token of it. Inline: every record comes by.
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

// (token, *operands): one record of a callback, whose answer `waiter` gets.
void PublishCall(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands, size_t count,
                 Replies::Waiter waiter);
// The token behind it, which must have its place before the answer comes.
DeviceToken NextOfCall(const LoadedSite &site, const DeviceToken &token);

// (*tokens): the program has published all it will.
void PublishEnd(const Span *tokens, size_t count, int32_t device, uint32_t devices);

// How devices enter a region.
struct Entrance {
  size_t num_tokens;
  size_t ordered; // so many of the tokens count
  uint32_t devices;
  bool may_diverge;
  bool has_group; // the operands behind the tokens are the number of the device's group of replicas, and its own
};
// (*tokens, ...): each device counts for itself from here on. Returns the tokens inside.
std::vector<DeviceToken> PublishEntrance(const Entrance &entrance, const Span *operands, int32_t device);
// (*tokens, *tokens at the entry): and ends it. Returns the tokens behind the region.
std::vector<DeviceToken> PublishExit(size_t num_tokens, size_t ordered, const Span *operands, int32_t device);
// (token): the device has no effects with the next `count` numbers. Returns the token behind them.
DeviceToken PublishSkip(uint32_t count, const Span &operand, int32_t device);

// As PublishCall(), for a program that was not dispatched by `effects.jit`.
void PublishPlainCall(const LoadedSite &site, int32_t device, const Span *operands, size_t count,
                      Replies::Waiter waiter);

} // namespace effects
