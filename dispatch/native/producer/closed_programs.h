// The programs that are known to have closed. For the thread that dispatched them: it need not keep what it would need
// if they failed. The drain finds out for itself.
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

  // True if this program has closed; may be false for one that has. Any thread; inline, since every dispatch asks.
  bool contains(uint32_t thread, uint32_t epoch) const {
    return closed_[SlotOf(thread, epoch)].load(std::memory_order_relaxed) == KeyOf(thread, epoch);
  }

  // One of the `devices` that run this program has closed (0: there is only one). Called by a device's thread.
  void note(const Token &token, uint32_t devices);

  // A failed program of this thread does not close on all its devices.
  void forget(uint32_t thread, uint32_t epoch);

private:
  static constexpr size_t kSlots = 1024;
  static uint64_t KeyOf(uint32_t thread, uint32_t epoch) { return uint64_t{thread} << 32 | epoch; }
  static size_t SlotOf(uint32_t thread, uint32_t epoch) { return (thread * 61 + epoch) % kSlots; }

  std::atomic<uint64_t> closed_[kSlots]; // by slot: the newest closed program
  std::mutex mutex_;
  std::unordered_map<uint64_t, uint32_t> closing_; // guarded by mutex_: by program, the devices that have
};

} // namespace effects
