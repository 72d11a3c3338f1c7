// How much may be parked, and what to do about records that do not get on.
//
// Records that came early are parked in memory, up to a limit; beyond it they stay in their rings, and their producers
// wait. If then nothing of their thread's leaves for a while, the program that is next may need the very threads that
// wait, which is a deadlock: the limit is raised, so that memory is the price.
//
// The leader of the drain alone calls everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "../order/release_order.h"

namespace effects {

class Parking {
public:
  explicit Parking(ReleaseOrder &order) : order_(order) {}

  // Whether this record may leave its ring.
  bool admits(const RecordHeader &header) { return order_.parked_bytes() <= limit_ || order_.releasable(header); }
  // This scan, the `scan`-th, left one of `thread`'s records as the oldest in its ring.
  void note_stalled(uint32_t thread, uint64_t scan);

  // After the scan: raises the limit if a ring has stalled for long, and lowers it once nothing is parked.
  void adapt(size_t ring_bytes, uint64_t scans);

  // A device that waits for its answer may be what the device whose record is next waits for. That is taken to be so,
  // and the order relaxed, if nothing of their program's has come or left for long.
  void relax_stuck_regions();

private:
  static constexpr size_t kRings = 8; // the limit is what so many rings hold
  static constexpr std::chrono::milliseconds kStalledPatience{100};
  static constexpr std::chrono::seconds kStuckPatience{2};

  struct StalledRing {
    uint64_t scan;     // the last one that found it so; of interest if not older than the last one that is over
    uint64_t progress; // ReleaseOrder's, at `since`
    std::chrono::steady_clock::time_point since;
  };
  struct StuckRegion {
    uint64_t progress;
    std::chrono::steady_clock::time_point since;
  };

  ReleaseOrder &order_;
  size_t limit_ = kRings * (size_t{1} << 20);
  std::unordered_map<uint32_t, StalledRing> stalled_; // by thread
  std::unordered_map<uint32_t, StuckRegion> stuck_;   // by thread: those whose devices may wait for each other
};

} // namespace effects
