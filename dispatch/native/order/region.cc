#include "region.h"

#include <algorithm>
#include <utility>

namespace effects {

void Region::enter(int32_t device, uint64_t devices, uint32_t entry, bool may_diverge) {
  devices_ = devices;
  entry_ = entry;
  may_diverge_ = may_diverge;
  if (Standing &standing = stand(device); !std::exchange(standing.has_entered, true)) {
    ++entered_;
    lost_ahead_ -= standing.is_lost;
  }
}

void Region::leave(int32_t device, uint32_t last) {
  Standing &standing = stand(device);
  standing.has_left = true;
  standing.last = last;
}

void Region::lose(int32_t device) {
  Standing &standing = stand(device);
  if (!std::exchange(standing.is_lost, true)) lost_ahead_ += !standing.has_entered;
}

void Region::forget(const Slot &slot) {
  awaited_.erase(slot);
  parked.erase(slot);
}

const Region::Slot *Region::next_parked() {
  if (parked.empty()) return nullptr;
  if (const Slot *first = next(); first != nullptr && parked.begin()->first <= *first) return &parked.begin()->first;
  if (!relaxed_) return nullptr;
  for (const auto &[last, device] : awaited_) {
    const uint64_t at = standing_[device].index;
    uint64_t index = at;
    for (auto it = parked.find({at, device}); index <= last && it != parked.end(); it = parked.find({index, device}))
      index += std::max<uint64_t>(it->second.gap_count, 1);
    if (index > last) return &parked.find({at, device})->first;
  }
  return nullptr;
}

const Region::Slot *Region::next() {
  if (!all_are_here()) return nullptr;
  while (!slots_.empty() && is_through(*slots_.begin())) slots_.erase(slots_.begin());
  return slots_.empty() ? nullptr : &*slots_.begin();
}

bool Region::is_through(const Slot &slot) const {
  const Standing &standing = standing_.at(slot.second);
  if (standing.is_lost) return parked.count(slot) == 0;
  return standing.has_left && static_cast<uint32_t>(standing.index) == standing.last;
}

Region::Slot Region::slot_of(const Token &token, int32_t device) {
  const uint64_t index = stand(device).index;
  return {index + static_cast<uint64_t>(int64_t{static_cast<int32_t>(token.index - static_cast<uint32_t>(index))}),
          device};
}

void Region::move(int32_t device, uint64_t index) {
  Standing &standing = stand(device);
  if (index <= standing.index) return;
  slots_.erase({standing.index, device});
  standing.index = index;
  slots_.insert({index, device});
}

Region::Standing &Region::stand(int32_t device) {
  auto [it, inserted] = standing_.try_emplace(device);
  if (inserted) slots_.insert({0, device});
  return it->second;
}

} // namespace effects
