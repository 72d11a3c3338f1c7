// Counts what a process allocates, when it is loaded ahead of the C library (LD_PRELOAD). The `__libc` names are
// glibc's own functions, under which they stay reachable.
#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static std::atomic<long> count{0};

long allocations() { return count.load(); }

void *malloc(size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}

void *calloc(size_t n, size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(n, size);
}

void *realloc(void *at, size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(at, size);
}

void *memalign(size_t alignment, size_t size) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **to, size_t alignment, size_t size) {
  *to = memalign(alignment, size);
  return *to == nullptr ? ENOMEM : 0;
}
}
