// A bounded ring of records with one producing thread and one consuming thread.
//
// The producer copies bytes in and takes no lock. Positions grow without bound and are reduced modulo the capacity, so
// "full" and "empty" cannot be confused. A record is contiguous: one that would cross the end is preceded by padding.
//
// All inline: every record of every device goes through these functions, each of a few instructions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "../wire.h"

namespace effects {

class Ring {
public:
  // `capacity` is rounded up to a power of two.
  explicit Ring(size_t capacity) : capacity_(RoundUpPowerOfTwo(capacity)), bytes_(new std::byte[capacity_]) {}
  Ring(const Ring &) = delete;
  Ring &operator=(const Ring &) = delete;

  size_t capacity() const { return capacity_; }

  // Producer: room for `size` contiguous bytes (a multiple of 8, at most a quarter of the capacity), or null when full.
  [[nodiscard]] std::byte *try_reserve(size_t size);

  // Producer: hands the reserved bytes to the consumer. Returns true if another half of the ring has been written.
  bool publish();

  // The end of the records that are there now. Later records are behind it.
  uint64_t end() const {
    return written_.load(std::memory_order_acquire); // pairs with publish()
  }

  // Consumer: calls `visit(record)` for every record before `end()` at the time of the call, oldest first, and removes
  // those for which it returns true, wherever they are. The room of a record removed from the middle is freed with that
  // of all before it. Returns true if any was removed. Records published meanwhile are not visited, so a fast producer
  // cannot hold us.
  template <typename Visit>
  bool take(uint64_t end, Visit &&visit);

  // Producer or consumer: bytes published and not yet freed, padding included.
  size_t used() const {
    const uint64_t read = read_.load(std::memory_order_relaxed);
    return static_cast<size_t>(written_.load(std::memory_order_relaxed) - read);
  }

private:
  static size_t RoundUpPowerOfTwo(size_t n) {
    size_t power = 4096;
    while (power < n) power *= 2;
    return power;
  }

  const size_t capacity_;
  const std::unique_ptr<std::byte[]> bytes_;

  // Each side's positions have cache lines of their own: the other side reads only the atomic, and the producer only when
  // its cached copy says that the ring is full.
  alignas(64) std::atomic<uint64_t> written_{0};
  uint64_t write_ = 0;
  uint64_t reserved_ = 0;
  uint64_t cached_read_ = 0;

  alignas(64) std::atomic<uint64_t> read_{0};
  uint64_t position_ = 0;
};

inline std::byte *Ring::try_reserve(size_t size) {
  const uint64_t offset = write_ & (capacity_ - 1);
  const uint64_t to_end = capacity_ - offset;
  const uint64_t padding = size <= to_end ? 0 : to_end;
  if (write_ + padding + size - cached_read_ > capacity_) {
    // Acquire: the consumer's reads of the bytes we are about to overwrite happened before.
    cached_read_ = read_.load(std::memory_order_acquire);
    if (write_ + padding + size - cached_read_ > capacity_) return nullptr;
  }
  if (padding != 0) {
    const uint32_t pad_size = static_cast<uint32_t>(padding);
    const Kind kind = Kind::kPadding;
    std::memcpy(&bytes_[offset], &pad_size, sizeof pad_size);
    std::memcpy(&bytes_[offset + sizeof pad_size], &kind, sizeof kind);
  }
  reserved_ = write_ + padding + size;
  return &bytes_[(write_ + padding) & (capacity_ - 1)];
}

inline bool Ring::publish() {
  const uint64_t halves = (write_ ^ reserved_) & ~(capacity_ / 2 - 1);
  write_ = reserved_;
  // Release: the record's bytes are visible before the position that covers them.
  written_.store(write_, std::memory_order_release);
  return halves != 0;
}

template <typename Visit>
bool Ring::take(uint64_t end, Visit &&visit) {
  bool any = false;
  bool oldest = true; // no record is left before `at`
  for (uint64_t at = position_; at < end;) {
    std::byte *record = &bytes_[at & (capacity_ - 1)];
    uint32_t size;
    Kind kind;
    std::memcpy(&size, record, sizeof size);
    std::memcpy(&kind, record + sizeof size, sizeof kind);
    at += size;
    if (kind != Kind::kPadding) {
      if (!visit(static_cast<const std::byte *>(record))) {
        oldest = false;
        continue;
      }
      any = true;
      // Published bytes that are not yet freed are ours: the producer does not read them.
      kind = Kind::kPadding;
      if (!oldest) std::memcpy(record + sizeof size, &kind, sizeof kind);
    }
    if (oldest) {
      position_ = at;
      // Release: our reads of the record happened before its bytes are overwritten.
      read_.store(position_, std::memory_order_release);
    }
  }
  return any;
}

} // namespace effects
