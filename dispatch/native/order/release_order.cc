#include "release_order.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace effects {

namespace {

void ReleaseParked(Parked &parked, const EpochInfo &info, Release release) {
  const std::byte *data = parked.payload.data();
  const size_t size = parked.header.payload_size;
  // A large payload's block moves to the batch.
  release(parked.header, Payload{data, size, (parked.header.flags & kLarge) ? parked.payload.take_block() : Block()},
          info);
}

} // namespace

// The host's notices

void ReleaseOrder::open(const EpochInfo &info, uint64_t dispatch) {
  EpochQueue &stream = streams_[info.thread];
  Epoch &epoch = stream.epochs.emplace_back();
  epoch.stream = &stream;
  epoch.info = info;
  epoch.dispatch = dispatch;
  epoch.opened = now_;
  newest_dispatch_ = dispatch;
  ++open_epochs_;
}

void ReleaseOrder::fail(uint32_t thread, uint32_t number) {
  if (Epoch *epoch = find(thread, number); epoch != nullptr && !epoch->failed) epoch->end(/*has_failed=*/true, scan_);
}

void ReleaseOrder::lose(uint32_t thread, uint32_t number, int32_t device) {
  if (Epoch *epoch = find(thread, number); epoch != nullptr) epoch->lost.try_emplace(device, scan_);
}

void ReleaseOrder::forget(uint32_t thread) {
  auto it = streams_.find(thread);
  if (it == streams_.end()) return;
  const EpochQueue &stream = it->second;
  if (stream.epochs.empty() && stream.ended.empty() && !stream.is_suspended()) streams_.erase(it);
}

uint64_t ReleaseOrder::suspend(uint32_t thread, uint32_t domain) {
  streams_[thread].runs.emplace(++last_run_, domain);
  ++num_suspended_;
  return last_run_;
}

void ReleaseOrder::resume(uint32_t thread, uint64_t run) {
  EpochQueue &stream = streams_[thread];
  num_suspended_ -= static_cast<int>(stream.runs.erase(run));
  if (stream.runs.empty()) stream.ended_in_run = 0;
}

// Queries

const Epoch *ReleaseOrder::find(uint32_t thread, uint32_t number) const {
  const auto it = streams_.find(thread);
  if (it == streams_.end() || it->second.epochs.empty()) return nullptr;
  const auto &epochs = it->second.epochs;
  const uint32_t position = number - epochs.front().info.epoch;
  return position < epochs.size() ? &epochs[position] : nullptr;
}

Epoch *ReleaseOrder::find(uint32_t thread, uint32_t number) {
  return const_cast<Epoch *>(std::as_const(*this).find(thread, number));
}

uint64_t ReleaseOrder::oldest_open() const {
  uint64_t oldest = newest_dispatch_ + 1;
  for (auto &[thread, stream] : streams_)
    if (!stream.epochs.empty()) oldest = std::min(oldest, stream.epochs.front().dispatch);
  return oldest;
}

bool ReleaseOrder::knows(const RecordHeader &header) const {
  return find(ThreadOf(header.token), header.token.epoch) != nullptr;
}

bool ReleaseOrder::releasable(const RecordHeader &header) {
  if (header.kind != Kind::kOrdered) return true;
  Epoch *epoch = find(ThreadOf(header.token), header.token.epoch);
  if (epoch == nullptr || epoch->failed) return true;
  Sequence &sequence = sequence_of(*epoch, header.token);
  return may_leave(*epoch, DomainOf(header.token)) && (sequence.is_due(header) || sequence.is_behind(header.token));
}

uint64_t ReleaseOrder::progress(uint32_t thread) const {
  const auto it = streams_.find(thread);
  return it == streams_.end() || it->second.epochs.empty() ? 0 : it->second.epochs.front().progress();
}

void ReleaseOrder::for_each_perhaps_stuck(const std::function<void(uint32_t, uint64_t)> &visit) const {
  if (!any_may_diverge_) return;
  for (auto &[thread, stream] : streams_) {
    if (stream.epochs.empty()) continue;
    const Epoch &oldest = stream.epochs.front();
    for (auto &[domain, sequence] : oldest.domains)
      if (auto region = sequence.regions.find(sequence.phase);
          region != sequence.regions.end() && region->second.may_be_stuck() && may_leave(oldest, domain))
        visit(thread, oldest.progress() + oldest.heard);
  }
}

void ReleaseOrder::relax(uint32_t thread) {
  for (auto &[domain, sequence] : streams_[thread].epochs.front().domains) {
    auto region = sequence.regions.find(sequence.phase);
    if (region == sequence.regions.end() || !region->second.may_be_stuck()) continue;
    region->second.relax();
    for (auto &[slot, parked] : region->second.parked)
      if (parked.header.reply != 0) stuck_sites_.insert(parked.header.site);
  }
}

// True if this epoch's records of a domain may be released as they come: the epoch is its thread's oldest, no function
// runs for the domain, and it need not wait for other streams.
bool ReleaseOrder::may_leave(const Epoch &epoch, uint32_t domain) const {
  const EpochQueue &stream = *epoch.stream;
  return &stream.epochs.front() == &epoch && !stream.is_suspended(domain) && takes(epoch.info.thread, domain) &&
         !waits_for_others(epoch);
}

// Programs in a nested stream wait for their own stream only.
bool ReleaseOrder::waits_for_others(const Epoch &epoch) const {
  const EpochQueue &stream = *epoch.stream;
  if (&stream != &plain_) return !stream.nested && plain_.is_behind(epoch.dispatch);
  // In one run with a function before it, this record could not pass that function: see let_awaited_pass().
  if (epoch.is_asked && plain_callback_in_run_) return true;
  return !is_overdue(epoch) && std::any_of(streams_.begin(), streams_.end(), [&](const auto &it) {
    return &it.second != &plain_ && !it.second.nested && it.second.is_behind(epoch.dispatch);
  });
}

Sequence &ReleaseOrder::sequence_of(Epoch &epoch, const Token &token) {
  note_domain(*epoch.stream, DomainOf(token));
  return epoch.domains[DomainOf(token)];
}

void ReleaseOrder::note_domain(EpochQueue &stream, uint32_t domain) {
  stream.several_domains = stream.several_domains || stream.domain.value_or(domain) != domain;
  stream.domain = domain;
}

// Arriving records

bool ReleaseOrder::accept(const RecordHeader &header, Payload &&payload, Release release) {
  const uint32_t thread = ThreadOf(header.token), domain = DomainOf(header.token);
  Epoch *epoch = find(thread, header.token.epoch);
  if (epoch == nullptr) { // another device's copy of a record that has left, or its program has failed
    discarded_ += !IsMarker(header.kind);
    return false;
  }
  if (thread == kPlainThread && !IsMarker(header.kind)) {
    epoch->is_asked = header.reply != 0;
    epoch->has_callback = (header.flags & kCallback) != 0;
  }
  if (header.kind == Kind::kUnordered) {
    note_domain(*epoch->stream, kNoDomain);
    // The first device that is heard of publishes for all: the others' records are copies, and have no index to show
    // it. An awaited record comes only once.
    if ((header.flags & kReplicated) != 0 && header.reply == 0) {
      if (epoch->primary < 0) epoch->primary = header.device;
      if (epoch->primary != header.device) {
        ++discarded_;
        return true;
      }
    }
    release(header, std::move(payload), epoch->info);
    return true;
  }
  ++epoch->heard;
  if (header.kind == Kind::kSkip) {
    accept_drop({header.token, header.site, header.device});
    return true;
  }
  if (IsMarker(header.kind)) {
    accept_marker(*epoch, header, payload, release);
    return true;
  }
  Sequence &sequence = sequence_of(*epoch, header.token);
  if (sequence.is_due(header) && may_leave(*epoch, domain)) {
    release(header, std::move(payload), epoch->info);
    sequence.pass(header.token, header.device);
    ++epoch->left;
    flush(*epoch, domain, sequence, release);
    return true;
  }
  if (sequence.is_behind(header.token)) {
    ++discarded_;
    return header.reply == 0; // a device's copy; if it awaits an answer, that has been given
  }
  if (InRegion(header.token)) return accept_in_region(*epoch, sequence, header, std::move(payload), release);
  return park(sequence.parked, sequence.next + static_cast<uint64_t>(sequence.offset(header.token)), header,
              std::move(payload)) ||
         header.reply == 0;
}

bool ReleaseOrder::accept_in_region(Epoch &epoch, Sequence &sequence, const RecordHeader &header, Payload &&payload,
                                    Release release) {
  Region &region = sequence.regions[header.token.phase];
  const Region::Slot slot = region.slot_of(header.token, header.device);
  const bool wanted = park(region.parked, slot, header, std::move(payload)) || header.reply == 0;
  if (header.reply != 0 && wanted) {
    region.await(slot);
    if (stuck_sites_.count(header.site) != 0) region.relax();
  }
  const uint32_t domain = DomainOf(header.token);
  if (may_leave(epoch, domain)) flush(epoch, domain, sequence, release);
  return wanted;
}

void ReleaseOrder::accept_drop(const DropRange &range) {
  Epoch *epoch = find(ThreadOf(range.first), range.first.epoch);
  if (epoch == nullptr) return;
  Sequence &sequence = sequence_of(*epoch, range.first);
  if (!InRegion(range.first)) {
    sequence.park_gap(range);
  } else if (!sequence.has_passed(range.first)) {
    Region &region = sequence.regions[range.first.phase];
    region.parked.try_emplace(region.slot_of(range.first, range.device), Parked::gap(range.first, range.count));
  }
}

// A marker of one device.
void ReleaseOrder::accept_marker(Epoch &epoch, const RecordHeader &header, const Payload &payload, Release release) {
  if (header.kind == Kind::kClose && epoch.ended) return;
  const bool first = header.kind != Kind::kClose || epoch.closed++ == 0;
  for (size_t at = 0; first && at + sizeof(Token) <= header.payload_size; at += sizeof(Token)) {
    Token token;
    std::memcpy(&token, payload.data + at, sizeof token);
    if (header.kind == Kind::kClose) {
      epoch.finals.push_back(token);
      continue;
    }
    Sequence &sequence = sequence_of(epoch, token);
    if (sequence.has_passed(token)) continue; // late: its program has failed
    Region &region = sequence.regions[token.phase];
    if (header.kind == Kind::kEnter) {
      const bool may_diverge = (header.flags & kMayDiverge) != 0;
      region.enter(header.device, header.site, token.index, may_diverge);
      any_may_diverge_ = any_may_diverge_ || may_diverge;
    }
    if (header.kind == Kind::kLeave) region.leave(header.device, token.index);
    if (may_leave(epoch, DomainOf(token))) flush(epoch, DomainOf(token), sequence, release);
  }
  if (header.kind == Kind::kClose && epoch.closed >= header.site) epoch.end(/*has_failed=*/false, scan_);
}

template <typename Slots, typename Slot>
bool ReleaseOrder::park(Slots &slots, const Slot &slot, const RecordHeader &header, Payload &&payload) {
  const size_t before = slots.size();
  const auto it = slots.try_emplace(slots.end(), slot); // most come in order
  if (slots.size() == before) {                         // another device's copy
    ++discarded_;
    return false;
  }
  it->second.header = header;
  it->second.payload = KeptBytes(std::move(payload));
  parked_bytes_ += it->second.bytes();
  return true;
}
template bool ReleaseOrder::park(std::map<uint64_t, Parked> &, const uint64_t &, const RecordHeader &, Payload &&);

// Released records

bool ReleaseOrder::advance(Release release, std::vector<Finished> &finished) {
  ++scan_;
  bool again = false;
  let_awaited_pass(release);
  heads_.clear();
  for (auto &[thread, stream] : streams_) {
    tell_ended(stream, finished);
    if (!stream.epochs.empty()) heads_.emplace_back(stream.epochs.front().dispatch, &stream);
  }
  std::sort(heads_.begin(), heads_.end());
  for (auto &[dispatch, stream] : heads_) end_epochs(*stream, release, finished, again);
  return again;
}

// A function that runs for a plain epoch may wait for a callback of a later plain program. So a plain record whose
// answer has been awaited for long is released before the function's end, after the records before it. Its epoch still
// ends in its turn.
void ReleaseOrder::let_awaited_pass(Release release) {
  if (!plain_.is_suspended()) return;
  const auto is_awaited = [](const Epoch &epoch) {
    const auto sequence = epoch.domains.find(0);
    return sequence != epoch.domains.end() && !sequence->second.parked.empty() &&
           sequence->second.parked.begin()->second.header.reply != 0;
  };
  const auto begin = plain_.epochs.begin();
  auto end = begin;
  for (auto it = begin; it != plain_.epochs.end() && is_overdue(*it); ++it)
    if (is_awaited(*it)) end = it + 1;
  for (auto it = begin; it != end; ++it)
    for (auto &[domain, sequence] : it->domains) flush(*it, domain, sequence, release);
}

// A close marker does not mean that all records of its program have been read:
//   1. The scan looks into the ring of one of the runtime's threads and passes on.
//   2. That thread publishes a record of the program.
//   3. Another thread, which runs the program's last equation, publishes the close marker.
//   4. The scan looks into the second ring, and sees the close.
//   5. If the epoch ended here, the record of step 2 would belong to no epoch.
// So an epoch ends after one more full scan, which begins after step 4 and finds the record of step 2.
//
// A domain whose records have all been released continues with the next epoch, while a function suspends another domain
// of this one.
void ReleaseOrder::end_epochs(EpochQueue &stream, Release release, std::vector<Finished> &finished, bool &again) {
  std::set<uint32_t> left; // the domains with remaining records in earlier epochs
  for (size_t at = 0; at < stream.epochs.size();) {
    Epoch &epoch = stream.epochs[at];
    const uint32_t thread = epoch.info.thread;
    if (stream.holds != 0 || waits_for_others(epoch)) return;
    const auto may_leave = [&](uint32_t domain) {
      return left.count(domain) == 0 && !stream.is_suspended(domain) && takes(thread, domain);
    };
    if (!epoch.lost.empty() && !leave_out_lost(epoch)) again = true;
    for (auto &[domain, sequence] : epoch.domains)
      if (may_leave(domain)) flush(epoch, domain, sequence, release);
    if (!epoch.ended || !takes(thread) || stream.carried != 0) return;
    if (scan_ <= epoch.ended_scan + 1) {
      again = true;
      return;
    }
    for (auto &[domain, sequence] : epoch.domains)
      if (epoch.failed && may_leave(domain)) flush_over_gaps(epoch, domain, sequence, release);
    if (!takes(thread)) return;
    epoch.find_left(left);
    if (at == 0 && left.empty()) {
      if (restricted_to_ >> kDomainBits == kPlainThread && &stream == &plain_ && epoch.has_callback)
        plain_callback_in_run_ = true;
      // Its records may be in the batch's run, which gets its number when the batch ends, or in earlier runs.
      const bool in_run = restricted_to_ >> kDomainBits == thread;
      if ((in_run || !stream.runs.empty()) && stream.ended_in_run == 0) stream.ended_in_run = epoch.dispatch;
      stream.ended.emplace_back(in_run ? last_run_ + 1 : last_run_, Finished{thread, epoch.info.epoch});
      tell_ended(stream, finished);
      // The host hears of the end when it has replayed the run, but now that no domain has records left.
      if (in_run || !stream.ended.empty()) note_complete(epoch, left);
      stream.epochs.pop_front();
      again = again || !stream.epochs.empty() || !plain_.epochs.empty();
    } else if (stream.several_domains) {
      note_complete(epoch, left);
      ++at;
    } else {
      return;
    }
  }
}

// A barrier that names effects waits for their domains.
void ReleaseOrder::note_complete(Epoch &epoch, const std::set<uint32_t> &left) {
  if (!epoch.stream->several_domains || epoch.told_left == left) return;
  epoch.told_left = left;
  complete_.push_back({epoch.info.thread, epoch.info.epoch, left});
}

// The host forgets the call of an epoch that has ended, and its barriers return. Without the numbers of runs:
//   1. A function of one domain runs, in run 1.
//   2. A batch has the last record of the epoch, of another domain, in run 2. The epoch is complete.
//   3. Run 1 ends. The host hears that the epoch has ended, while run 2 replays the record of step 2.
void ReleaseOrder::tell_ended(EpochQueue &stream, std::vector<Finished> &finished) {
  auto &ended = stream.ended;
  const uint64_t oldest_run = stream.runs.empty() ? last_run_ + 2 : stream.runs.begin()->first;
  for (; !ended.empty() && ended.front().first < oldest_run; ended.pop_front(), --open_epochs_)
    finished.push_back(ended.front().second);
}

// A failed device's last records may be in a ring that the scan had passed, as above. So the device is left out after
// one more full scan. Regions may be made later, so this is repeated after every scan. Returns true if all failed
// devices are left out.
bool ReleaseOrder::leave_out_lost(Epoch &epoch) {
  bool all = true;
  for (const auto &[device, lost_scan] : epoch.lost) {
    if (scan_ <= lost_scan + 1) {
      all = false;
      continue;
    }
    for (auto &[domain, sequence] : epoch.domains)
      for (auto &[phase, region] : sequence.regions) region.lose(device);
    if (epoch.primary == device) epoch.primary = -1;
  }
  return all;
}

void ReleaseOrder::release_first(Sequence &sequence, const EpochInfo &info, Release release) {
  auto it = sequence.parked.begin();
  Parked &parked = it->second;
  if (parked.gap_count != 0) {
    sequence.next = std::max(sequence.next, it->first + parked.gap_count);
  } else {
    if (it->first == sequence.next) { // else a gap has passed it
      ReleaseParked(parked, info, release);
      ++sequence.next;
    } else {
      ++discarded_;
    }
    parked_bytes_ -= parked.bytes();
  }
  sequence.parked.erase(it);
}

// Releases a record that is parked in a region, or a gap.
void ReleaseOrder::release_slot(Epoch &epoch, Region &region, const Region::Slot &slot, Release release) {
  auto it = region.parked.find(slot);
  const auto [index, device] = it->first;
  Parked &parked = it->second;
  if (parked.gap_count == 0) {
    ReleaseParked(parked, epoch.info, release);
    ++epoch.left;
    parked_bytes_ -= parked.bytes();
  }
  region.move(device, index + std::max<uint64_t>(parked.gap_count, 1));
  region.forget({index, device});
}

// Releases the records that are due, through all regions that are over.
void ReleaseOrder::flush(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release) {
  while (takes(epoch.info.thread, domain)) {
    if ((sequence.phase & 1) != 0) {
      Region &region = sequence.regions[sequence.phase];
      if (region.is_over()) {
        sequence.regions.erase(sequence.phase++);
        continue;
      }
      const Region::Slot *next = region.next_parked();
      if (next == nullptr) return;
      release_slot(epoch, region, *next, release);
    } else if (auto first = sequence.parked.begin();
               first != sequence.parked.end() && first->first <= sequence.next &&
               static_cast<int32_t>(first->second.header.token.phase - sequence.phase) <= 0) {
      const uint64_t before = sequence.next;
      release_first(sequence, epoch.info, release);
      epoch.left += sequence.next - before;
    } else if (auto region = sequence.regions.begin(); region != sequence.regions.end() &&
                                                       region->first == sequence.phase + 1 &&
                                                       region->second.begins_at(sequence.next)) {
      ++sequence.phase;
    } else {
      return;
    }
  }
}

// For a failed program: releases the parked records in order, and waits for none.
void ReleaseOrder::flush_over_gaps(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release) {
  while (takes(epoch.info.thread, domain) && !(sequence.parked.empty() && sequence.regions.empty())) {
    const auto region = sequence.regions.begin();
    const auto first = sequence.parked.begin();
    if (first == sequence.parked.end() ||
        (region != sequence.regions.end() && region->first < first->second.header.token.phase)) {
      sequence.phase = region->first;
      if (!region->second.parked.empty())
        release_slot(epoch, region->second, region->second.parked.begin()->first, release);
      else
        sequence.regions.erase(sequence.phase++);
    } else {
      sequence.phase = first->second.header.token.phase;
      sequence.next = std::max(sequence.next, first->first);
      release_first(sequence, epoch.info, release);
    }
  }
}

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
  // A parked record stays: its device publishes the records after it too, or reports its own gap.
  if (!inserted && it->second.gap_count != 0) it->second.gap_count = std::max(it->second.gap_count, count);
}

void Epoch::end(bool has_failed, uint64_t scan) {
  ended = true;
  failed = info.failed = has_failed;
  ended_scan = scan;
}

void Epoch::find_left(std::set<uint32_t> &left) {
  if (failed) {
    for (auto &[domain, sequence] : domains)
      if (!sequence.parked.empty() || !sequence.regions.empty()) left.insert(domain);
  } else {
    for (const Token &last : finals) {
      const Sequence &sequence = domains[DomainOf(last)];
      if (sequence.phase != last.phase || static_cast<uint32_t>(sequence.next) != last.index)
        left.insert(DomainOf(last));
    }
  }
}

} // namespace effects
