// Bytes on their way from a device's buffers to the host: where they lie, and memory of their own.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace effects {

// Bytes that somebody else has.
struct Span {
  const void *data;
  size_t size;
};

// A payload in memory of its own.
struct Free {
  void operator()(std::byte *block) const { std::free(block); }
};
using Block = std::unique_ptr<std::byte[], Free>;

// Throws std::bad_alloc. A block of no bytes is not null either.
Block AllocateBlock(size_t size);

} // namespace effects
