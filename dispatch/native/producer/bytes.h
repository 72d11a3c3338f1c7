// Bytes on their way from a device's buffers to the host: views, and blocks that own them.
//
// Any thread may call everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

namespace effects {

// A view of bytes.
struct Span {
  const void *data;
  size_t size;
};
// A view of memory to write to.
struct Out {
  void *data;
  size_t size;
};

// A block that owns a payload.
struct Free {
  void operator()(std::byte *block) const;
};
using Block = std::unique_ptr<std::byte[], Free>;

// Throws std::bad_alloc. A block of no bytes is not null either. It is aligned to 64 bytes, as XLA's buffers are.
//
// Fresh memory costs a page fault per page, which takes longer than the copy into it. So freed large blocks are kept
// for a while and reused.
Block AllocateBlock(size_t size);

// Frees large blocks that have been kept unused for this long.
void GiveBackBlocks(std::chrono::milliseconds unused_for);

// The bytes of large blocks in use, and of those kept for reuse.
struct LargeBlocks {
  size_t used, kept;
};
LargeBlocks CountLargeBlocks();

} // namespace effects
