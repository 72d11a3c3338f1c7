// The part of the release order that knows untracked records: those of programs that JAX dispatched, without epochs.
#include "release_order.h"

#include <algorithm>
#include <utility>

namespace effects {

bool ReleaseOrder::accept_untracked(const RecordHeader &header, Payload &&payload, Release release) {
  if (header.kind == Kind::kUnordered) {
    release(header, std::move(payload), kUntrackedInfo);
    return true;
  }
  if (header.reply != 0) ++untracked_num_asked_;
  park(untracked_.parked, untracked_.next + static_cast<uint64_t>(untracked_.offset(header.token)), header,
       std::move(payload));
  flush_untracked(release);
  return true;
}

// An untracked record carries the number of dispatches when it was published, and leaves after all of them have ended,
// and after what has left of them has been replayed:
//   1. A batch has records of an epoch for Python to replay, and the epoch ends with them.
//   2. While Python replays them, another thread takes the lead.
//   3. An untracked record from after that epoch left here, and was written ahead of what is being replayed.
// A suspended stream's cannot end while a function that runs for it waits for this record. Whether it does is not
// known: the host looks where it stands.
bool ReleaseOrder::untracked_is_due(const RecordHeader &header) const {
  const bool asked = untracked_num_asked_ != 0;
  for (auto &[thread, stream] : streams_) {
    const bool passes = untracked_awaited_by_function_ || (asked && (stream.runs == 0 || stream.waits));
    if (stream.nested || (stream.is_suspended() && passes)) continue;
    uint64_t oldest = stream.ended_in_run;
    if (oldest == 0 && !stream.epochs.empty()) oldest = stream.epochs.front().dispatch;
    if (oldest != 0 && static_cast<int32_t>(header.token.epoch - static_cast<uint32_t>(oldest)) >= 0) return false;
  }
  return true;
}

// A function that runs for an untracked record may wait for untracked records itself. They cannot wait for it then.
bool ReleaseOrder::untracked_may_leave() const {
  return may_leave(kUntrackedThread) && (untracked_suspended_ == 0 || untracked_awaited_by_function_ ||
                                         (untracked_num_asked_ != 0 && untracked_waits_));
}

bool ReleaseOrder::is_asked_held_up() const {
  if (untracked_num_asked_ == 0) return false;
  if (untracked_suspended_ != 0 && !untracked_waits_) return true;
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto &it) { return it.second.runs != 0 && !it.second.waits && !it.second.nested; });
}

bool ReleaseOrder::is_untracked_held_up() const {
  if (untracked_.parked.empty() || !untracked_may_leave()) return false;
  const auto &[first, parked] = *untracked_.parked.begin();
  return first <= untracked_.next && parked.gap_count == 0 && !untracked_is_due(parked.header);
}

void ReleaseOrder::let_asked_pass(uint32_t thread) {
  if (thread == kUntrackedThread) untracked_waits_ = untracked_suspended_ != 0;
  if (const auto it = streams_.find(thread); it != streams_.end()) it->second.waits = it->second.runs != 0;
}

// A record from before the epoch's dispatch may be here unseen:
//   1. The scan looks into a ring and passes on.
//   2. An untracked record is published into that ring.
//   3. A program is dispatched, publishes, and its record is seen by the rest of the scan.
//   4. The program's record left here, ahead of the one of step 2.
// After a whole scan more, that one is parked.
bool ReleaseOrder::must_wait_for_untracked(const Epoch &epoch) const {
  if (scan_ <= epoch.opened_scan + 1) return true;
  const auto is_earlier = [&](uint32_t stamp) {
    return static_cast<int32_t>(stamp - static_cast<uint32_t>(epoch.dispatch)) < 0;
  };
  if (untracked_suspended_ != 0 && is_earlier(untracked_stamp_)) return true;
  if (untracked_.parked.empty()) return false;
  const Parked &oldest = untracked_.parked.begin()->second;
  return oldest.gap_count == 0 && is_earlier(oldest.header.token.epoch);
}

// Returns whether anything left, so that an epoch may have become the next.
bool ReleaseOrder::flush_untracked(Release release) {
  bool flushed = false;
  if (!untracked_may_leave()) return false;
  while (!untracked_.parked.empty() && untracked_.parked.begin()->first <= untracked_.next &&
         may_leave(kUntrackedThread)) {
    Parked &parked = untracked_.parked.begin()->second;
    if (parked.gap_count == 0) {
      if (untracked_.parked.begin()->first >= untracked_passing_ && !untracked_is_due(parked.header)) break;
      untracked_stamp_ = parked.header.token.epoch;
      if (parked.header.reply != 0) --untracked_num_asked_;
    }
    release_first(untracked_, kUntrackedInfo, release);
    flushed = true;
  }
  return flushed;
}

} // namespace effects
