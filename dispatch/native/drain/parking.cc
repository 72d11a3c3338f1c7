#include "parking.h"

#include <utility>
#include <vector>

namespace effects {

void Parking::note_stalled(uint32_t thread, uint64_t scan) {
  const uint64_t progress = order_.progress(thread);
  auto [it, inserted] = stalled_.try_emplace(thread);
  const bool still = !inserted && it->second.scan + 1 >= scan; // the scan before found it so, too
  it->second.scan = scan;
  if (still && it->second.progress == progress) return;
  it->second.progress = progress;
  it->second.since = std::chrono::steady_clock::now();
}

void Parking::adapt(size_t ring_bytes, uint64_t scans) {
  if (order_.parked_bytes() == 0) {
    stalled_.clear();
    limit_ = kRings * ring_bytes;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  for (const auto &[thread, ring] : stalled_) {
    if (ring.scan + 1 < scans || now - ring.since <= kStalledPatience) continue;
    limit_ *= 2;
    stalled_.clear();
    return;
  }
}

void Parking::relax_stuck_regions() {
  const auto now = std::chrono::steady_clock::now();
  std::unordered_map<uint32_t, StuckRegion> stuck;
  std::vector<uint32_t> for_long;
  order_.for_each_perhaps_stuck([&](uint32_t thread, uint64_t progress) {
    auto before = stuck_.find(thread);
    const bool same = before != stuck_.end() && before->second.progress == progress;
    stuck[thread] = {progress, same ? before->second.since : now};
    if (now - stuck[thread].since > kStuckPatience) for_long.push_back(thread);
  });
  stuck_ = std::move(stuck);
  for (const uint32_t thread : for_long) order_.relax(thread);
}

} // namespace effects
