// Bytes on their way from a device's buffers to the host: where they lie, and memory of their own.
//
// Any thread may call everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

namespace effects {

// Bytes in the memory of another.
struct Span {
  const void *data;
  size_t size;
};
// Where bytes go, in the memory of another.
struct Out {
  void *data;
  size_t size;
};

// A payload in memory of its own.
struct Free {
  void operator()(std::byte *block) const;
};
using Block = std::unique_ptr<std::byte[], Free>;

// Throws std::bad_alloc. A block of no bytes is not null either. It is aligned to 64 bytes, as XLA's buffers are.
//
// Fresh memory costs a fault for each page, which takes longer than the copy that fills it. So large blocks are kept
// for a while when they are freed, and used again.
Block AllocateBlock(size_t size);

// Gives memory of large blocks back that has been kept, unused, for this long.
void GiveBackBlocks(std::chrono::milliseconds unused_for);

// The bytes of large blocks that are in use, and of those that are kept.
struct LargeBlocks {
  size_t used, kept;
};
LargeBlocks CountLargeBlocks();

} // namespace effects
