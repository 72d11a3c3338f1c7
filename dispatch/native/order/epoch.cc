#include "epoch.h"

#include <algorithm>

namespace effects {

bool Sequence::is_due_in_region(const RecordHeader &header) {
  Region &region = regions[phase];
  const Region::Slot *next = region.next();
  return next != nullptr && *next == region.slot_of(header.token, header.device);
}

void Sequence::park_gap(const DropRange &range) {
  const int64_t ahead = offset(range.first);
  const uint64_t behind = ahead < 0 ? static_cast<uint64_t>(-ahead) : 0;
  if (behind >= range.count) return;
  const uint64_t count = range.count - behind;
  auto [it, inserted] =
      parked.try_emplace(next + static_cast<uint64_t>(std::max<int64_t>(ahead, 0)), Parked::gap(range.first, count));
  // A record that is there stays: the device that dropped its copy says what became of the records behind it.
  if (!inserted && it->second.gap_count != 0) it->second.gap_count = std::max(it->second.gap_count, count);
}

void Epoch::end(bool has_failed, uint64_t scan) {
  ended = true;
  failed = info.failed = has_failed;
  ended_scan = scan;
}

bool Epoch::is_complete() {
  if (failed) return false;
  for (const Token &last : finals) {
    const Sequence &sequence = domains[DomainOf(last)];
    if (sequence.phase != last.phase || static_cast<uint32_t>(sequence.next) != last.index) return false;
  }
  return true;
}

} // namespace effects
