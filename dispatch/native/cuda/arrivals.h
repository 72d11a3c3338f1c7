// Launches by the kernel (kernel.h) that streams have not come to yet. A thread of the host's looks at their flags, and
// publishes what has come, of each stream in the order of the launches. No stream stands still meanwhile.
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

#include "../producer/bytes.h"
#include "driver.h"
#include "pinned.h"

namespace effects::cuda {

// One launch. The slot begins with the flag, which the kernel sets when the copies behind it are there.
struct Arrival {
  Slot slot;
  std::vector<Span> copies;
  std::function<void(Span *operands, size_t count)> publish;
  size_t size = 0; // of the slot

  bool has_come() const {
    // Acquire: what the kernel has written before the flag is seen.
    return reinterpret_cast<const std::atomic<uint32_t> *>(slot.data())->load(std::memory_order_acquire) != 0;
  }
};

class Arrivals {
public:
  // The thread that launches, when the kernel is in the stream. Waits while the stream's launches hold too much memory:
  // what they wait for is that their records are published, and so that the drain takes these. They do not wait for
  // another stream's, which may stand at a collective that this thread has yet to launch. Takes the arrival, unless it
  // throws: if the process ends nothing comes any more.
  void add(const Driver &driver, Stream stream, Arrival &arrival);

  // A thread that holds no lock, when the process ends: from now on no flag is looked at, whose memory the driver is
  // about to free. What is being published is waited for, though not for long.
  void stop();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

private:
  struct OfStream {
    std::deque<Arrival> waiting;
    size_t bytes = 0; // of those that have not been published
  };
  void run();
  std::vector<std::pair<Stream, Arrival>> take_come(); // with the lock held
  bool any() const;                                    // as well
  void drop_failed();

  static constexpr size_t kMost = size_t{1} << 26; // bytes of a stream's launches that are under way

  std::mutex mutex_; // guards all below
  std::condition_variable added_, published_;
  std::map<Stream, OfStream> streams_;
  const Driver *driver_ = nullptr;
  bool started_ = false, publishing_ = false;
  std::atomic<bool> stopped_{false}; // written under the lock
};

// The process's own.
Arrivals &arrivals();

} // namespace effects::cuda
