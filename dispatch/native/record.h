// A record: what a device publishes and the host replays. Plain bytes, no pointers, except for the
// payload of a large record, which travels beside the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace effects {

// A token that counts. The same four numbers are the dependency inside the compiled program and the
// place of an effect in program order.
struct Token {
  uint32_t stream; // thread number << 8 | order domain's number within the program
  uint32_t epoch;  // number of the dispatch within the thread's stream
  uint32_t phase;  // grows when control enters or leaves a per-device region
  uint32_t index;  // grows with every effect; in a per-device region from 0 on
};

inline constexpr uint32_t kDomainBits = 8;
inline uint32_t ThreadOf(const Token &token) { return token.stream >> kDomainBits; }

// Whether devices count for themselves here.
inline bool InRegion(const Token &token) { return (token.phase & 1) != 0; }

// A token as it lies in a buffer. In a region over some axes of its mesh, devices that differ along the others only are
// copies of each other, which have one effect between them: there a token says too which part of the region it counts
// for, and on which of that part's copies. The first speaks for all.
//
// Inside such a region may be others, in which the copies go ways of their own. Then all devices count for themselves,
// and those that do not speak skip an index, so that each effect has its place in its device's own order.
struct Place {
  Token token;
  bool has_part = false;
  uint32_t part = 0;
  uint32_t copy = 0;
  uint32_t turn = 0;  // how many effects the copies have shared
  uint32_t skips = 0; // whether those that do not speak say so

  bool speaks() const { return copy == 0; }
};

// The stream of records that were published outside `effects.jit`: it has no epochs.
inline constexpr uint32_t kPlainThread = 0xFFFFFF;

enum class Kind : uint16_t {
  kPadding = 0,   // fills the ring up to its end; never leaves it
  kOrdered = 1,   // released in the order of its token
  kUnordered = 2, // released when it arrives
  // Markers: the payload holds one Token per domain, and `site` says how many devices publish theirs.
  kClose = 3, // the program has published all it will
  kEnter = 4, // a device begins to count for itself: the index is that of the next effect around the region
  kLeave = 5, // and ends it: the index after its last effect
  kSkip = 6,  // a device has no effect of its own at this index
};

inline bool IsMarker(Kind kind) { return kind >= Kind::kClose; }

enum Flag : uint16_t {
  kLarge = 1,      // the payload is a pointer to a block, owned by the record
  kReplicated = 2, // every device of the program publishes this same record
  kCallback = 4,   // replaying it runs a function of the user's
  kApart = 8,      // of kEnter: a device that waits for an answer may be what the other devices wait for
};

// The device of a record that all devices of a program publish alike, as the host sees it.
inline constexpr int32_t kAllDevices = -1;

struct RecordHeader {
  uint32_t size; // bytes this record takes in the ring, a multiple of 8; first, so that padding fits in 8 bytes
  Kind kind;
  uint16_t flags;
  uint64_t site;
  Token token;
  int32_t device;
  uint32_t reply; // not 0: a device waits for the answer of this number; see Replies
  uint64_t payload_size;
};
static_assert(sizeof(RecordHeader) == 48 && sizeof(RecordHeader) % 8 == 0, "the payload is 8-byte aligned");

inline constexpr size_t RoundUp8(size_t n) { return (n + 7) & ~size_t{7}; }

// A payload in memory of its own.
struct Free {
  void operator()(std::byte *block) const { std::free(block); }
};
using Block = std::unique_ptr<std::byte[], Free>;

inline Block AllocateBlock(size_t size) {
  Block block(static_cast<std::byte *>(std::malloc(size == 0 ? 1 : size)));
  if (!block) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Fresh memory costs a fault per page, which is dearer than the copy that fills it.
  constexpr size_t kWorthwhile = size_t{1} << 22;
  constexpr uintptr_t kPage = 4096;
  if (size >= kWorthwhile) {
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(block.get()) + kPage - 1) & ~(kPage - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(block.get()) + size) & ~(kPage - 1);
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE); // advice: it may be refused
  }
#endif
  return block;
}

} // namespace effects
