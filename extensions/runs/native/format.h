// A run file, byte by byte. All numbers are little-endian; the reference is docs/reference/run-files.md.
//
//   0     FileHeader, in a page of 4096 bytes
//   4096  the records: `capacity` bytes, in segments of `segment` bytes
//   then  what describes them, each behind the other up to the end of the file: kProcess and kSite
//
// Both consist of entries. An entry is 8 bytes of checksum, a RecordHeader (dispatch/native/wire.h), and its payload.
// It has a position: of what describes, its place in the file; of a record, how many bytes had been taken ahead of it.
// The records of round r, from position r * segment on, lie in segment r modulo the number of segments, and say in
// their headers which round it is, in place of `reply`. The checksum is of the position and all bytes behind it. So
// what a process that was killed had begun to write is no entry.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dispatch/native/wire.h"

namespace effects::runs {

inline constexpr char kMagic[8] = {'f', 'x', '-', 'r', 'u', 'n', '\r', '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kByteOrder = 0x01020304; // as the writer's machine has it
inline constexpr size_t kPage = 4096;

// Beside the kinds of the wire.
inline constexpr auto kSite = static_cast<Kind>(64);    // the payload is a site's description
inline constexpr auto kProcess = static_cast<Kind>(65); // and here JSON: which process of which run this is

struct FileHeader {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t capacity, segment;
  uint64_t seed;                // of all checksums: no other run's
  uint64_t checksum;            // of all above
  std::atomic<uint64_t> taken;  // how many bytes of records have been taken
  std::atomic<uint64_t> lost;   // how many records did not fit
  std::atomic<uint32_t> closed; // 1: the recording has ended by itself
};
static_assert(sizeof(FileHeader) <= kPage && std::atomic<uint64_t>::is_always_lock_free);

struct EntryHeader {
  uint64_t checksum;
  RecordHeader record; // whose size is the entry's
};
static_assert(sizeof(EntryHeader) == 64);

// Eight bytes at a time, which a multiplication spreads over all bits.
inline uint64_t Checksum(uint64_t seed, const void *data, size_t size) {
  const auto *bytes = static_cast<const std::byte *>(data);
  uint64_t sum = seed ^ size;
  for (uint64_t word; size >= sizeof word; size -= sizeof word, bytes += sizeof word) {
    std::memcpy(&word, bytes, sizeof word);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15;
    sum ^= sum >> 32;
  }
  return sum | 1; // never what an empty file has
}
inline uint64_t SumOf(const EntryHeader *entry, uint64_t seed, uint64_t position, size_t size) {
  return Checksum(seed + position, &entry->record, size - sizeof entry->checksum);
}

} // namespace effects::runs
