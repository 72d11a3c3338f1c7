// Records that are released, or parked until they can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../producer/bytes.h"
#include "../wire.h"

namespace effects {

struct PrintOptions;

// The host's facts about an epoch, from its opening.
struct EpochInfo {
  uint32_t thread;
  uint32_t epoch;
  uint64_t sink;
  bool failed = false;
  const PrintOptions *options = nullptr; // those in force at the call; null: NumPy's defaults
};

// A record's bytes, and the block that owns them, if any. Whoever keeps the bytes takes the block.
struct Payload {
  const std::byte *data;
  size_t size;
  Block block;
};

// A kept payload. Most payloads are small, and stored inline.
class KeptBytes {
public:
  KeptBytes() = default;
  explicit KeptBytes(Payload &&payload) : block_(std::move(payload.block)) {
    if (block_) return;
    if (payload.size > kFew) block_ = AllocateBlock(payload.size);
    if (payload.size != 0) std::memcpy(block_ ? block_.get() : few_, payload.data, payload.size);
  }
  const std::byte *data() const { return block_ ? block_.get() : few_; }
  Block take_block() { return std::move(block_); }

  static constexpr size_t kFew = 48;

private:
  alignas(8) std::byte few_[kFew];
  Block block_;
};

// A parked record, or a gap.
struct Parked {
  RecordHeader header;
  KeptBytes payload;
  uint64_t gap_count = 0; // not 0: a gap of this many dropped indices

  static Parked gap(const Token &first, uint64_t count) {
    Parked parked{};
    parked.header.token = first;
    parked.gap_count = count;
    return parked;
  }
  size_t bytes() const { return sizeof(Parked) + (header.payload_size > KeptBytes::kFew ? header.payload_size : 0); }
};

// The receiver of released records: a reference to a callable, valid until the call that it is passed to returns.
class Release {
public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Release>>>
  Release(F &&function) // NOLINT: made where it is passed
      : function_(const_cast<void *>(static_cast<const void *>(&function))),
        call_([](void *callable, const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
          (*static_cast<std::remove_reference_t<F> *>(callable))(header, std::move(payload), info);
        }) {}
  void operator()(const RecordHeader &header, Payload &&payload, const EpochInfo &info) const {
    call_(function_, header, std::move(payload), info);
  }

private:
  void *function_;
  void (*call_)(void *, const RecordHeader &, Payload &&, const EpochInfo &);
};

} // namespace effects
