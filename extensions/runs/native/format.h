// A run file, byte by byte. All numbers are little-endian; the reference is docs/reference/runs.md.
//
//   0     FileHeader, in a page of 4096 bytes
//   4096  the records: `capacity` bytes, in segments of `segment` bytes
//   then  what describes them, each behind the other up to the end of the file: kProcess and kSite
//
// Both consist of entries. An entry is 8 bytes of checksum, a RecordHeader (dispatch/native/wire.h), and its payload.
// It has a position: of what describes, its place behind the records; of a record, how many bytes had been taken ahead
// of it. The records of round r, from position r * segment on, lie in segment r modulo the number of segments, and say
// in their headers which round it is, in place of `reply`. The checksum is of the position and all bytes behind it. So
// what a process that was killed had begun to write is no entry. The entries of a round lie one behind the other; where
// the next one found no room in its segment, EndOfSegment is behind the last. So a record that is missing leaves a gap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dispatch/native/wire.h"

namespace effects::runs {

inline constexpr char kMagic[8] = {'f', 'x', '-', 'r', 'u', 'n', '\r', '\n'};
inline constexpr uint32_t kVersion = 3;
inline constexpr uint32_t kByteOrder = 0x01020304; // as the writer's machine has it
inline constexpr size_t kPage = 4096;

// Beside the kinds of the wire.
inline constexpr auto kSite = static_cast<Kind>(64);    // the payload is a site's description
inline constexpr auto kProcess = static_cast<Kind>(65); // and here JSON: which process of which run this is

struct FileHeader {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t capacity, segment;   // once it is closed, the last segment may be a part of one
  uint64_t seed;                // of all checksums: no other run's
  uint64_t checksum;            // of all above
  std::atomic<uint64_t> taken;  // how many bytes of records have been taken
  std::atomic<uint64_t> lost;   // how many records did not fit
  std::atomic<uint64_t> closed; // 0, or of all above, if the recording has ended by itself
};
static_assert(sizeof(FileHeader) <= kPage && std::atomic<uint64_t>::is_always_lock_free);

struct EntryHeader {
  uint64_t checksum;
  RecordHeader record; // whose size is the entry's
};
static_assert(sizeof(EntryHeader) == 64);

// The sum of products, each of eight bytes and their place, so that no product waits for another.
class Checksum {
public:
  Checksum(uint64_t seed, uint64_t position) : place_(seed + position) {}
  void add(uint64_t word) {
    const auto product = static_cast<unsigned __int128>(word ^ place_) * 0x9E3779B97F4A7C15;
    sum_ += static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    place_ += sizeof word;
  }
  void add(const void *data, size_t size) {
    uint64_t word;
    for (size_t at = 0; at + sizeof word <= size; at += sizeof word) {
      std::memcpy(&word, static_cast<const std::byte *>(data) + at, sizeof word);
      add(word);
    }
  }
  uint64_t value() const { return sum_ | 1; } // never what an empty file has

private:
  uint64_t place_, sum_ = 0;
};
inline uint64_t SumOf(const EntryHeader *entry, uint64_t seed, uint64_t position, size_t size) {
  Checksum sum(seed, position);
  sum.add(&entry->record, size - sizeof entry->checksum);
  return sum.value();
}
inline uint64_t SumOf(const FileHeader &file, size_t size = offsetof(FileHeader, seed)) {
  Checksum sum(file.seed, 0);
  sum.add(&file, size);
  return sum.value();
}
inline uint64_t EndOfSegment(uint64_t seed, uint64_t position) {
  Checksum sum(seed, position);
  sum.add(0);
  return sum.value();
}

} // namespace effects::runs
