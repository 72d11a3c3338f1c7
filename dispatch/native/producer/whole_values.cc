#include "whole_values.h"

#include <chrono>
#include <cstring>

namespace effects {
namespace {

constexpr std::chrono::milliseconds kPatience{100};

std::pair<uint32_t, uint32_t> ProgramOf(const Token &token) { return {ThreadOf(token), token.epoch}; }
std::pair<uint64_t, uint64_t> PlaceOf(const Token &token) {
  return {DomainOf(token), uint64_t{token.phase} << 32 | token.index};
}

// Copies the axes from `axis` on. `from` and `to` are element offsets in the shard and in the whole.
void CopyAxes(const Shard &shard, size_t axis, size_t last, size_t from, size_t to, size_t run, std::byte *whole) {
  if (axis == last) {
    std::memcpy(whole + to * shard.item, shard.data + from * shard.item, run * shard.item);
    return;
  }
  size_t from_step = 1, to_step = 1;
  for (size_t i = axis + 1; i < shard.rank; ++i) {
    from_step *= static_cast<size_t>(shard.sizes[i]);
    to_step *= static_cast<size_t>(shard.whole(i));
  }
  for (int64_t at = 0; at < shard.end(axis) - shard.begin(axis); ++at)
    CopyAxes(shard, axis + 1, last, from + static_cast<size_t>(at) * from_step,
             to + static_cast<size_t>(shard.begin(axis) + at) * to_step, run, whole);
}

void Copy(const Shard &shard, std::byte *whole) {
  // The trailing axes that the shard has whole are contiguous in both, and so is its part of the axis before them.
  size_t last = shard.rank, run = 1;
  while (last > 0 && shard.begin(last - 1) == 0 && shard.end(last - 1) == shard.whole(last - 1) &&
         shard.sizes[last - 1] == shard.whole(last - 1))
    run *= static_cast<size_t>(shard.whole(--last));
  size_t to = 0;
  if (last > 0) {
    --last;
    to = static_cast<size_t>(shard.begin(last)) * run;
    run *= static_cast<size_t>(shard.end(last) - shard.begin(last));
  }
  CopyAxes(shard, 0, last, 0, to, run, whole);
}

} // namespace

size_t Shard::whole_bytes() const {
  size_t bytes = item;
  for (size_t axis = 0; axis < rank; ++axis) bytes *= static_cast<size_t>(whole(axis));
  return bytes;
}

WholePayload WholeValues::add(const Token &token, const std::vector<Shard> &shards, uint32_t devices, bool may_wait,
                              const std::function<bool()> &is_shown) {
  size_t size = 0;
  for (const Shard &shard : shards) size += RoundUp8(shard.whole_bytes());
  const std::shared_ptr<Whole> whole = find_or_make(token, size, devices, may_wait, is_shown);
  std::byte *to = whole->payload.block.get();
  for (const Shard &shard : shards) {
    if (shard.is_copied() && to != nullptr) Copy(shard, to);
    if (to != nullptr) to += RoundUp8(shard.whole_bytes());
  }
  // Release: a device's copies. Acquire: the last device reads all of them.
  if (whole->missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
  take_away(token);
  return std::move(whole->payload);
}

std::shared_ptr<WholeValues::Whole> WholeValues::find_or_make(const Token &token, size_t size, uint32_t devices,
                                                              bool may_wait, const std::function<bool()> &is_shown) {
  std::unique_lock lock(mutex_);
  const auto find = [&]() -> std::shared_ptr<Whole> {
    const auto program = programs_.find(ProgramOf(token));
    if (program == programs_.end()) return nullptr;
    const auto found = program->second.find(PlaceOf(token));
    return found == program->second.end() ? nullptr : found->second;
  };
  std::shared_ptr<Whole> whole = find();
  if (whole == nullptr && may_wait && bytes_ + size > limit_) {
    completed_.wait_for(lock, kPatience,
                        [&] { return bytes_ == 0 || bytes_ + size <= limit_ || (whole = find()) != nullptr; });
    whole = find();
  }
  if (whole != nullptr) return whole;
  whole = std::make_shared<Whole>();
  whole->payload.is_skipped = is_shown && !is_shown();
  if (!whole->payload.is_skipped) {
    whole->payload.block = AllocateBlock(size);
    whole->payload.size = size;
    bytes_ += size;
  }
  whole->missing.store(devices, std::memory_order_relaxed);
  programs_[ProgramOf(token)].emplace(PlaceOf(token), whole);
  return whole;
}

void WholeValues::take_away(const Token &token) {
  std::lock_guard lock(mutex_);
  const auto program = programs_.find(ProgramOf(token));
  if (program == programs_.end()) return; // forgotten meanwhile
  if (const auto found = program->second.find(PlaceOf(token)); found != program->second.end()) {
    bytes_ -= found->second->payload.size;
    program->second.erase(found);
  }
  if (program->second.empty()) programs_.erase(program);
  completed_.notify_all();
}

void WholeValues::forget(uint32_t thread, uint32_t epoch) {
  std::lock_guard lock(mutex_);
  const auto program = programs_.find({thread, epoch});
  if (program == programs_.end()) return;
  for (const auto &[place, whole] : program->second) bytes_ -= whole->payload.size;
  programs_.erase(program);
  completed_.notify_all();
}

size_t WholeValues::incomplete() {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const auto &[key, program] : programs_) count += program.size();
  return count;
}

} // namespace effects
