#include "producer_ring.h"

namespace effects {

void ProducerRing::keep(std::vector<std::byte> record) {
  side_.kept.push_back(std::move(record));
  has_side_.store(true, std::memory_order_release);
}

void ProducerRing::note_drop(const RecordHeader &header) {
  has_side_.store(true, std::memory_order_release);
  if (header.kind != Kind::kOrdered) return;
  if (!side_.drops.empty()) {
    DropRange &last = side_.drops.back();
    if (last.first.stream == header.token.stream && last.first.epoch == header.token.epoch &&
        last.first.phase == header.token.phase && last.device == header.device &&
        last.first.index + static_cast<uint32_t>(last.count) == header.token.index) {
      ++last.count;
      return;
    }
  }
  side_.drops.push_back({header.token, 1, header.device});
}

ProducerRing::Side ProducerRing::take_side() {
  has_side_.store(false, std::memory_order_release);
  return std::exchange(side_, {});
}

} // namespace effects
