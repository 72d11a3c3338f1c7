// A token in a device's buffer: its four numbers, and in a region over some axes of its mesh two more, the replica
// group and the replica.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "../wire.h"
#include "bytes.h"
#include "token_cells.h"

namespace effects {

// A dispatched program.
struct Program {
  uint32_t thread, epoch;
  friend bool operator<(const Program &a, const Program &b) {
    return std::tie(a.thread, a.epoch) < std::tie(b.thread, b.epoch);
  }
};
inline Program ProgramOf(const Token &token) { return {ThreadOf(token), token.epoch}; }

struct DeviceToken {
  DeviceToken() = default;
  DeviceToken(const Token &token) : token(token), placed_stream(token.stream), placed_epoch(token.epoch) {}
  DeviceToken(const DeviceToken &of, bool has_group, const ReplicaNumbers &replicas)
      : token(of.token), placed_stream(of.placed_stream), placed_epoch(of.placed_epoch), has_group(has_group),
        replicas(replicas) {}

  Token token{};                                // with its program's stream and epoch
  uint32_t placed_stream = 0, placed_epoch = 0; // as on the device: the same in all tokens of a program
  bool has_group = false;
  ReplicaNumbers replicas{};

  // True if the device publishes, for its group or, without a group, for itself.
  bool is_primary() const { return replicas.replica == 0; }
};

// Advances a token as a call does.
inline void Take(const TokenStep &step, Token &token) {
  token.phase += step.phase;
  token.index = (step.keeps_index ? token.index : 0) + step.index;
}
inline void Take(const TokenStep &step, DeviceToken &token) { Take(step, token.token); }

inline constexpr size_t kTokenSize = sizeof(Token);
inline constexpr size_t kReplicaTokenSize = sizeof(Token) + sizeof(ReplicaNumbers);

// Both inline: every record reads a token and writes one.

// Throws std::invalid_argument if the size is neither.
inline DeviceToken LoadToken(const void *data, size_t size) {
  if (size != kTokenSize && size != kReplicaTokenSize)
    throw std::invalid_argument("A token has neither the type uint32[4] nor uint32[6]. Effects and the native module "
                                "must come from one version of token-effects. Install the package anew.");
  Token placed;
  std::memcpy(&placed, data, kTokenSize);
  DeviceToken token(placed);
  Resolve(token.token);
  if ((token.has_group = size != kTokenSize))
    std::memcpy(&token.replicas, static_cast<const std::byte *>(data) + kTokenSize, sizeof token.replicas);
  return token;
}
inline DeviceToken LoadToken(const Span &span) { return LoadToken(span.data, span.size); }

// The buffer has the size that the token was read with.
inline void StoreToken(const DeviceToken &token, void *data) {
  // Two numbers at a time: one load of two fields that were just stored separately would stall (no store forwarding).
  const auto both = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  const uint64_t placed[] = {both(token.placed_stream, token.placed_epoch), both(token.token.phase, token.token.index)};
  static_assert(sizeof placed == kTokenSize);
  std::memcpy(data, placed, kTokenSize);
  if (token.has_group) std::memcpy(static_cast<std::byte *>(data) + kTokenSize, &token.replicas, sizeof token.replicas);
}

} // namespace effects
