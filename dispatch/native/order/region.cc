#include "region.h"

namespace effects {

void Region::enter(int32_t device, uint64_t devices, uint32_t entry, bool may_diverge) {
  devices_ = devices;
  entry_ = entry;
  may_diverge_ = may_diverge;
  stand(device);
  ++entered_;
}

void Region::leave(int32_t device, uint32_t last) {
  Standing &standing = stand(device);
  standing.has_left = true;
  standing.last = last;
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
    while (index <= last && parked.count({index, device}) != 0) ++index;
    if (index > last) return &parked.find({at, device})->first;
  }
  return nullptr;
}

const Region::Slot *Region::next() {
  if (entered_ == 0 || entered_ < devices_) return nullptr;
  while (!slots_.empty()) {
    const Standing &first = standing_[slots_.begin()->second];
    if (!first.has_left || static_cast<uint32_t>(first.index) != first.last) return &*slots_.begin();
    slots_.erase(slots_.begin());
  }
  return nullptr;
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
