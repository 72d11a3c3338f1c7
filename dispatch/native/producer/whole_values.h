// Records of sharded values: each device copies its shards into the whole value in host memory, and the last device
// publishes the record. So devices gather nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../wire.h"
#include "bytes.h"

namespace effects {

// A device's shard of one operand.
struct Shard {
  const std::byte *data;
  size_t item; // the bytes of an element
  size_t rank;
  const int64_t *sizes;   // of the shard along each axis; beyond the end of the whole it is padding
  const int32_t *numbers; // true if this device copies it; then for each axis its begin, its end, and the whole size

  bool is_copied() const { return numbers[0] != 0; }
  int64_t begin(size_t axis) const { return numbers[1 + 3 * axis]; }
  int64_t end(size_t axis) const { return numbers[2 + 3 * axis]; }
  int64_t whole(size_t axis) const { return numbers[3 + 3 * axis]; }
  size_t whole_bytes() const;
};

// The whole operands of a record.
struct WholePayload {
  Block block;
  size_t size = 0;
  bool is_skipped = false;
  explicit operator bool() const { return block != nullptr; }
};

class WholeValues {
public:
  // `limit`: the bytes of unfinished records. A device that would exceed them with a new record waits for the others,
  // but not for long: they may be waiting for this device.
  explicit WholeValues(size_t limit = size_t{1} << 26) : limit_(limit) {}

  // A device's thread: copies the device's shards of the record at this place in the order. `devices`: the number that
  // copy. Returns the payload to the last of them, and nothing to the others. Throws std::bad_alloc. The first device
  // asks the filter for all; if the record is not shown, nothing is copied, and the last gets a payload that
  // `is_skipped`.
  WholePayload add(const Token &token, const std::vector<Shard> &shards, uint32_t devices, bool may_wait,
                   const std::function<bool()> &is_shown = {});

  // This program has failed: some of its devices may never come.
  void forget(uint32_t thread, uint32_t epoch);

  // The number of unfinished records.
  size_t incomplete();

private:
  struct Whole {
    WholePayload payload;
    std::atomic<uint32_t> missing; // the number of devices that have not copied yet
  };
  using Program = std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Whole>>; // by the rest of the token

  std::shared_ptr<Whole> find_or_make(const Token &token, size_t size, uint32_t devices, bool may_wait,
                                      const std::function<bool()> &is_shown);
  void take_away(const Token &token);

  const size_t limit_;
  std::mutex mutex_; // guards all below
  std::condition_variable completed_;
  size_t bytes_ = 0;
  std::map<std::pair<uint32_t, uint32_t>, Program> programs_; // by thread and epoch
};

} // namespace effects
