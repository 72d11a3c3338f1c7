// Records of values that lie in shards on several devices: each device copies its shards to their places, and the last
// one publishes the record. So nothing is gathered on the devices.
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

// What a device has of one operand.
struct Shard {
  const std::byte *data;
  size_t item; // the bytes of an element
  size_t rank;
  const int64_t *sizes; // of the shard along each axis; what lies behind its end in the whole is padding
  const int32_t
      *numbers; // whether this device copies it, and for each axis where it begins and ends, and the whole size

  bool is_copied() const { return numbers[0] != 0; }
  int64_t begin(size_t axis) const { return numbers[1 + 3 * axis]; }
  int64_t end(size_t axis) const { return numbers[2 + 3 * axis]; }
  int64_t whole(size_t axis) const { return numbers[3 + 3 * axis]; }
  size_t whole_bytes() const;
};

// The operands of a record, whole.
struct WholePayload {
  Block block;
  size_t size = 0;
  bool is_skipped = false;
  explicit operator bool() const { return block != nullptr; }
};

class WholeValues {
public:
  // `limit`: the bytes of records that not all devices have come to. A device that would begin one beyond them waits
  // for the others, but not for long: they may be waiting for it.
  explicit WholeValues(size_t limit = size_t{1} << 26) : limit_(limit) {}

  // A device's thread: copies what the device has of the record at this place in the order. `devices`: how many copy
  // something. Returns the payload to the last of them, and nothing to the others. Throws std::bad_alloc. The first of
  // them asks for all whether it is shown; if not, nothing is copied, and the last one gets a payload that
  // `is_skipped`.
  WholePayload add(const Token &token, const std::vector<Shard> &shards, uint32_t devices, bool may_wait,
                   const std::function<bool()> &is_shown = {});

  // This program has failed: not all of its devices may come.
  void forget(uint32_t thread, uint32_t epoch);

  // How many records wait for devices.
  size_t incomplete();

private:
  struct Whole {
    WholePayload payload;
    std::atomic<uint32_t> missing; // how many devices have not copied yet
  };
  using Program = std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Whole>>; // by what follows in the token

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
