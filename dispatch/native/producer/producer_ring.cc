#include "producer_ring.h"

namespace effects {
namespace {

// True if an effect continues a run.
bool Continues(const DropRange &range, const Token &token, int32_t device) {
  return range.first.stream == token.stream && range.first.epoch == token.epoch && range.first.phase == token.phase &&
         range.device == device && range.first.index + static_cast<uint32_t>(range.count) == token.index;
}

} // namespace

void ProducerRing::keep(std::vector<std::byte> record) {
  side_.kept.push_back(std::move(record));
  has_side_.store(true, std::memory_order_release);
}

void ProducerRing::note_drop(const RecordHeader &header) {
  has_side_.store(true, std::memory_order_release);
  if (header.kind != Kind::kOrdered) return;
  if (!side_.drops.empty() && Continues(side_.drops.back(), header.token, header.device))
    ++side_.drops.back().count;
  else
    side_.drops.push_back({header.token, 1, header.device});
}

void ProducerRing::skip(const Token &token, int32_t device) {
  const uint64_t count = skipped_.load(std::memory_order_relaxed);
  if (count == 0 || !Continues({skips_, count, skipping_device_}, token, device)) return begin_skips(token, device);
  skipped_.store(count + 1, std::memory_order_release); // pairs with has_side() and take_skips()
}

void ProducerRing::begin_skips(const Token &token, int32_t device) {
  std::lock_guard lock(consumer);
  take_skips();
  skips_ = token;
  skipping_device_ = device;
  skips_taken_.store(0, std::memory_order_relaxed); // read by has_side() with the count below
  skipped_.store(1, std::memory_order_release);
}

void ProducerRing::take_skips() {
  const uint64_t count = skipped_.load(std::memory_order_acquire);
  const uint64_t taken = skips_taken_.load(std::memory_order_relaxed);
  if (count == taken) return;
  DropRange range{skips_, count - taken, skipping_device_};
  range.first.index += static_cast<uint32_t>(taken);
  skips_taken_.store(count, std::memory_order_relaxed);
  has_side_.store(true, std::memory_order_release);
  side_.drops.push_back(range);
}

ProducerRing::Side ProducerRing::take_side() {
  take_skips();
  has_side_.store(false, std::memory_order_release);
  return std::exchange(side_, {});
}

} // namespace effects
