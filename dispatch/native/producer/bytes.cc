#include "bytes.h"

#include <cstdint>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace effects {

Block AllocateBlock(size_t size) {
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
