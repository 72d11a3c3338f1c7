// What handlers publish, wherever their operands lie: the handlers of CPUs hand over the device's own memory, those of
// CUDA copies of it. Operands are as the program gives them, with the tokens in front.
//
// The thread that publishes calls everything here: the device's own, or the one that runs a stream's host functions.
// What is thrown is the call's error.
#pragma once

#include <cstddef>
#include <cstdint>
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

// (token, *operands): one record. The first of a region takes the token around it; the last gives that back, and takes
// it behind its own if it is not the first too. Of what is sharded, the first operand is a row of numbers: whether this
// device is primary, as the first of those that have the same shards, and what the record begins with. `own` is the
// token; the spans are those behind it, and `dims` theirs, which only records of whole values look at. Returns the next
// token.
DeviceToken PublishRecord(const LoadedSite &site, int32_t device, DeviceToken own, Span *operands, size_t count,
                          const Dims *dims);

// (token, *operands): one record of a callback, whose answer `waiter` gets.
void PublishCall(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands, size_t count,
                 Replies::Waiter waiter);
// The token behind it, which must have its place before the answer comes.
DeviceToken NextOfCall(const LoadedSite &site, int32_t device, const DeviceToken &token);

// (*tokens): the program has published all it will.
void PublishEnd(const Span *tokens, size_t count, int32_t device, uint32_t devices);

// How devices enter a region.
struct Entrance {
  size_t num_tokens;
  size_t ordered; // so many of the tokens count
  uint32_t devices;
  bool may_diverge;
  bool has_group;       // the operands behind the tokens are the number of the device's group of replicas, and its own
  bool announces_skips; // see ReplicaNumbers
};
// (*tokens, ...): each device counts for itself from here on. Returns the tokens inside.
std::vector<DeviceToken> PublishEntrance(const Entrance &entrance, const Span *operands, int32_t device);
// (*tokens, *tokens at the entry): and ends it. Returns the tokens behind the region.
std::vector<DeviceToken> PublishExit(size_t num_tokens, size_t ordered, const Span *operands, int32_t device);

// As PublishCall(), for a program that was not dispatched by `effects.jit`.
void PublishUntrackedCall(const LoadedSite &site, int32_t device, const Span *operands, size_t count,
                          Replies::Waiter waiter);

} // namespace effects
