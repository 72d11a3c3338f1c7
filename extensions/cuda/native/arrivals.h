// Launches of the kernel (kernel.h) that streams have not reached. A host thread polls their flags, and publishes
// arrivals in launch order. No stream stalls meanwhile.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "dispatch/native/producer/bytes.h"
#include "driver.h"
#include "pinned.h"

namespace effects::cuda {

// One launch. The slot begins with the flag, which the kernel sets when its copies are done.
struct Arrival {
  Slot slot;
  std::vector<Span> copies;
  std::function<void(Span *operands, size_t count)> publish;
  uint64_t number = 0; // of the launch, over all streams

  bool has_come() const {
    // Acquire: the kernel's writes before the flag are visible.
    return reinterpret_cast<const std::atomic<uint32_t> *>(slot.data())->load(std::memory_order_acquire) != 0;
  }
};

class Arrivals {
public:
  // The launching thread, after it has launched the kernel. Takes the arrival unless it throws: if the process is
  // ending, there are no more arrivals.
  void add(const Driver &driver, Stream stream, Arrival &arrival);

  // A thread without locks, when the process ends: stops polling flags, whose memory the driver is about to free. Waits
  // for a record that is being published, though not for long.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

private:
  void run();
  std::vector<Arrival> take_come(); // with mutex_ held
  bool any() const;                 // with mutex_ held
  void drop_failed();

  std::mutex mutex_; // guards all below
  std::condition_variable added_, published_;
  std::map<Stream, std::deque<Arrival>> waiting_;
  uint64_t launched_ = 0;
  const Driver *driver_ = nullptr;
  bool started_ = false, publishing_ = false;
  std::atomic<bool> stopped_{false}; // written under the lock
};

// The instance of the process.
Arrivals &arrivals();

} // namespace effects::cuda
