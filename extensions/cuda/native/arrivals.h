// Launches by the kernel (kernel.h) that streams have not come to yet. A thread of the host's looks at their flags, and
// publishes what has come, in the order of the launches. No stream stands still meanwhile.
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

// One launch. The slot begins with the flag, which the kernel sets when the copies behind it are there.
struct Arrival {
  Slot slot;
  std::vector<Span> copies;
  std::function<void(Span *operands, size_t count)> publish;
  uint64_t number = 0; // of the launch, of all streams'

  bool has_come() const {
    // Acquire: what the kernel has written before the flag is seen.
    return reinterpret_cast<const std::atomic<uint32_t> *>(slot.data())->load(std::memory_order_acquire) != 0;
  }
};

class Arrivals {
public:
  // The thread that launches, when the kernel is in the stream. Takes the arrival, unless it throws: if the process
  // ends nothing comes any more.
  void add(const Driver &driver, Stream stream, Arrival &arrival);

  // A thread that holds no lock, when the process ends: from now on no flag is looked at, whose memory the driver is
  // about to free. What is being published is waited for, though not for long.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

private:
  void run();
  std::vector<Arrival> take_come(); // with the lock held
  bool any() const;                 // as well
  void drop_failed();

  std::mutex mutex_; // guards all below
  std::condition_variable added_, published_;
  std::map<Stream, std::deque<Arrival>> waiting_;
  uint64_t launched_ = 0;
  const Driver *driver_ = nullptr;
  bool started_ = false, publishing_ = false;
  std::atomic<bool> stopped_{false}; // written under the lock
};

// The process's own.
Arrivals &arrivals();

} // namespace effects::cuda
