// Which programs are known to have published all they will, for the thread that dispatched them: it need not keep what
// it would need if they failed. The drain finds out for itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "../wire.h"

namespace effects {

class ClosedPrograms {
public:
  ClosedPrograms();

  // Whether this program has. May say no for one that has. Any thread; inline, since every dispatch asks.
  bool contains(uint32_t thread, uint32_t epoch) const {
    return closed_[SlotOf(thread, epoch)].load(std::memory_order_relaxed) == KeyOf(thread, epoch);
  }

  // One of the `devices` that run this program has; 0: there is but one. A device's thread.
  void note(const Token &token, uint32_t devices);

  // A program of this thread's that has failed does not close on all its devices.
  void forget(uint32_t thread, uint32_t epoch);

private:
  static constexpr size_t kSlots = 1024;
  static uint64_t KeyOf(uint32_t thread, uint32_t epoch) { return uint64_t{thread} << 32 | epoch; }
  static size_t SlotOf(uint32_t thread, uint32_t epoch) { return (thread * 61 + epoch) % kSlots; }

  std::atomic<uint64_t> closed_[kSlots]; // by slot: the newest program that has closed
  std::mutex mutex_;
  std::unordered_map<uint64_t, uint32_t> closing_; // guarded by mutex_: how many devices of a program have
};

} // namespace effects
