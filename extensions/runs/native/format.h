// A run file, byte by byte. All numbers are little-endian; the reference is docs/reference/runs.md.
//
//   0     FileHeader, in a page of 4096 bytes
//   4096  the records: `capacity` bytes, in segments of `segment` bytes
//   then  the descriptions of records, kProcess and kSite, consecutive up to the end of the file
//
// Both consist of entries. An entry is 8 bytes of checksum, a RecordHeader (dispatch/native/wire.h), and its payload.
// It has a position: a description's is its offset after the records; a record's is the number of bytes taken before
// it. The records of round r, from position r * segment on, are in segment r modulo the number of segments, with r in
// the header field `reply`. The checksum covers the position and all bytes after the checksum, so a half-written entry
// of a killed process is not an entry. The entries of a round are consecutive; if the next one did not fit into its
// segment, EndOfSegment follows the last. So a missing record leaves a gap.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dispatch/native/wire.h"

namespace effects::runs {

inline constexpr char kMagic[8] = {'f', 'x', '-', 'r', 'u', 'n', '\r', '\n'};
inline constexpr uint32_t kVersion = 3;
inline constexpr uint32_t kByteOrder = 0x01020304; // in the byte order of the writer's machine
inline constexpr size_t kPage = 4096;

// Kinds beside those of the wire.
inline constexpr auto kSite = static_cast<Kind>(64);    // the payload is a site's description
inline constexpr auto kProcess = static_cast<Kind>(65); // the payload is JSON: the process and its run

struct FileHeader {
  char magic[8];
  uint32_t version, byte_order;
  uint64_t capacity, segment;   // in a closed file the last segment may be partial
  uint64_t seed;                // of all checksums; unique to the run
  uint64_t checksum;            // of all above
  std::atomic<uint64_t> taken;  // the bytes of records taken
  std::atomic<uint64_t> lost;   // the number of records that did not fit
  std::atomic<uint64_t> closed; // a checksum of all fields above if the recording was closed, else 0
};
static_assert(sizeof(FileHeader) <= kPage && std::atomic<uint64_t>::is_always_lock_free);

struct EntryHeader {
  uint64_t checksum;
  RecordHeader record; // its size is the entry's
};
static_assert(sizeof(EntryHeader) == 64);

// A sum of products of eight bytes with their place: the products are independent, so the CPU computes them in
// parallel.
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
  uint64_t value() const { return sum_ | 1; } // never 0, as in an empty file

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
