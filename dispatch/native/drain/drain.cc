#include "drain.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>
namespace effects {

namespace {

using std::chrono::steady_clock;

// While programs run, no record wakes the drain. It polls the rings, so that records travel in batches.
constexpr std::chrono::microseconds kFirstPause{500};
constexpr std::chrono::microseconds kLongestPause{4000};
// The shortest interval between polls, unless a thread waits or a ring is half full: each batch takes the GIL, which
// dispatching threads need too.
constexpr std::chrono::microseconds kPace{10000};
// How long a freed large block is kept for reuse.
constexpr std::chrono::milliseconds kKeepsBlocks{3000};
constexpr std::chrono::hours kForEver{24};

bool HasLargeBlocks() {
  const LargeBlocks blocks = CountLargeBlocks();
  return blocks.used + blocks.kept != 0; // a block in use may be freed, and so kept, while the leader sleeps
}

} // namespace

Drain::Drain(WakeUp &wake_up, Publisher &publisher, Sites &sites, Replies &replies)
    : wake_up_(wake_up), publisher_(publisher), sites_(sites), replies_(replies), inbox_(wake_up),
      builder_(publisher.stats, sites, order_), parking_(order_) {}

// For the host

void Drain::fail(uint32_t thread, uint32_t epoch) {
  replies_.forget_replicated(thread, epoch);
  publisher_.closed.forget(thread, epoch);
  publisher_.whole_values.forget(thread, epoch);
  inbox_.post({Notice::kFail, {thread, epoch, 0}, 0});
}

void Drain::lose(uint32_t thread, uint32_t epoch, int32_t device) {
  replies_.end_groups(thread, epoch);
  inbox_.post({Notice::kLose, {thread, epoch, 0}, static_cast<uint64_t>(device)});
}

void Drain::release_site(uint64_t site) {
  if (publisher_.refuses()) return; // a forked child: a thread of the parent may hold a lock
  sites_.release(site, publisher_.dispatches.load(std::memory_order_relaxed));
  inbox_.knock();
}

void Drain::fail_replies(const std::string &why) {
  for (const uint32_t number : replies_.open()) replies_.fail(number, why);
}

// The leader's

Batch Drain::next_batch(std::chrono::milliseconds patience) {
  Batch batch;
  builder_.begin(batch);
  wake_up_.pace(last_batch_ + kPace);
  const auto start = steady_clock::now();
  auto pause = kFirstPause;
  for (;;) {
    const bool progress = collect(batch);
    last_batch_ = steady_clock::now();
    builder_.end(batch);
    if (progress || batch.stopped) return batch;
    if (fall_asleep()) {
      while (!wake_up_.sleep(HasLargeBlocks() ? kKeepsBlocks : kForEver)) GiveBackBlocks(kKeepsBlocks);
      last_batch_ = steady_clock::now();
      wake_up_.pace(last_batch_ + kPace);
    } else {
      wake_up_.pause_for(pause);
      GiveBackBlocks(kKeepsBlocks);
      pause = std::min(2 * pause, kLongestPause);
      if (steady_clock::now() - start > patience) return batch;
    }
  }
}

// Puts releasable records into the batch. Returns true if there is anything to tell the host.
bool Drain::collect(Batch &batch) {
  const auto release = [&](const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
    builder_.release(batch, header, std::move(payload), info);
  };
  for (bool again = true; again && !builder_.is_full();) {
    bool moved = false;
    if (!scan(batch, moved)) break; // the batch is full: the next call goes on with this scan
    again = order_.advance(release, batch.finished) || moved;
    if (builder_.is_closed()) break; // somebody waits for these records
  }
  batch.complete = order_.take_complete();
  publisher_.stats.discarded.fetch_add(order_.take_discarded(), std::memory_order_relaxed);
  parking_.adapt(publisher_.ring_bytes.load(std::memory_order_relaxed), scans_);
  parking_.relax_stuck_regions();
  if (!batch.has_run() && !order_.any_suspended() && sites_.any_dying())
    batch.forgotten = sites_.forget(order_.oldest_open());
  batch.stopped = wake_up_.stopped();
  return !batch.items.empty() || batch.has_run() || !batch.finished.empty() || !batch.complete.empty() ||
         !batch.forgotten.empty();
}

// True if nothing is under way, so that the leader may sleep until an `open` wakes it. It must not sleep on a parked
// record: if the record before that one is dropped, nothing wakes the leader.
//
// Nor while a program waits for a callback: a program that JAX dispatched may ask before its record is here.
bool Drain::fall_asleep() {
  if (replies_.any_open()) return false;
  return inbox_.try_to_sleep(
      [&] { return order_.open_epochs() == 0 && order_.parked_bytes() == 0 && !builder_.has_carried(); });
}

void Drain::read_inbox() {
  order_.set_time(steady_clock::now());
  for (const Notice &notice : inbox_.read()) {
    switch (notice.what) {
    case Notice::kOpen:
      order_.open(notice.info, notice.number);
      break;
    case Notice::kFail:
      order_.fail(notice.info.thread, notice.info.epoch);
      break;
    case Notice::kLose:
      order_.lose(notice.info.thread, notice.info.epoch, static_cast<int32_t>(notice.number));
      break;
    case Notice::kForget:
      order_.forget(notice.info.thread);
      break;
    case Notice::kHold:
      order_.hold(notice.info.thread);
      break;
    case Notice::kLetGo:
      order_.let_go(notice.info.thread);
      break;
    case Notice::kResume:
      order_.resume(notice.info.thread, notice.number);
      break;
    case Notice::kNest:
      order_.nest(notice.info.thread);
      break;
    }
  }
}

// Scans all rings to their ends: ReleaseOrder relies on that, and no fast producer may starve the other rings. A full
// batch interrupts a scan between two rings. Returns true if the scan is over; sets `moved` if anything was taken.
bool Drain::scan(Batch &batch, bool &moved) {
  read_inbox();
  const bool over = publisher_.for_each_ring([&](ProducerRing &ring) {
    scan_ring(batch, ring, moved);
    return !builder_.is_full();
  });
  // Without a lock: it may run the rest of a program.
  for (const uint32_t reply : std::exchange(late_, {}))
    replies_.fail(reply, "The program had failed before its turn came.");
  if (over) ++scans_;
  return over;
}

// The host announces a program before it runs. The drain may not have read of it yet:
//   1. The drain reads its inbox.
//   2. The host announces a program, which is dispatched and publishes.
//   3. The drain finds the program's record, or that one was dropped, and knows no such epoch.
// So an unknown epoch makes the drain read the inbox again, before it takes the epoch for an ended one.
void Drain::scan_ring(Batch &batch, ProducerRing &ring, bool &moved) {
  const uint64_t end = ring.ring.end();
  std::unique_lock consumer(ring.consumer);
  if (ring.has_side()) {
    read_inbox();
    const ProducerRing::Side side = ring.take_side();
    for (const DropRange &range : side.drops) order_.accept_drop(range);
    for (const auto &record : side.kept) accept(batch, record.data());
    moved = true;
  }
  publisher_.stats.note_high_water(ring.ring.used());
  bool stalled = false;
  const bool taken = ring.ring.take(end, [&](const std::byte *record) {
    RecordHeader header;
    std::memcpy(&header, record, sizeof header);
    if (!order_.knows(header)) read_inbox();
    if (!parking_.admits(header)) {
      if (!std::exchange(stalled, true)) parking_.note_stalled(ThreadOf(header.token), scans_);
      return false;
    }
    accept(batch, record);
    return true;
  });
  consumer.unlock();
  if (taken) {
    ring.notify_room();
    moved = true;
  }
}

void Drain::accept(Batch &batch, const std::byte *record) {
  RecordHeader header;
  std::memcpy(&header, record, sizeof header);
  Payload payload{record + sizeof header, header.payload_size, nullptr};
  if (header.flags & kLarge) {
    payload.block = publisher_.take_large(header, payload.data);
    payload.data = payload.block.get();
  }
  const bool wanted =
      order_.accept(header, std::move(payload), [&](const RecordHeader &left, Payload &&bytes, const EpochInfo &info) {
        builder_.release(batch, left, std::move(bytes), info);
      });
  if (!wanted && header.reply != 0) {
    publisher_.stats.cancelled.fetch_add(1, std::memory_order_relaxed);
    late_.push_back(header.reply);
  }
}

void Inbox::forget(uint32_t thread) {
  {
    std::lock_guard lock(mutex_);
    next_epoch_.erase(thread);
  }
  post({Notice::kForget, {thread, 0, 0}, 0});
}

void Inbox::number_anew(uint32_t thread, uint64_t dispatches) {
  std::lock_guard lock(mutex_);
  next_epoch_[thread] = static_cast<uint32_t>(dispatches);
}

uint32_t Inbox::next_epoch(uint32_t thread) {
  std::lock_guard lock(mutex_);
  return next_epoch_[thread];
}

void Inbox::post(const Notice &notice) {
  bool slept;
  {
    std::lock_guard lock(mutex_);
    notices_.push_back(notice);
    slept = std::exchange(sleeps_, false);
  }
  if (slept) wake_up_.set_work_pending();
}

void Inbox::knock() {
  bool slept;
  {
    std::lock_guard lock(mutex_);
    slept = std::exchange(sleeps_, false);
  }
  if (slept) wake_up_.set_work_pending();
}

const std::vector<Notice> &Inbox::read() {
  reading_.clear();
  std::lock_guard lock(mutex_);
  std::swap(notices_, reading_);
  return reading_;
}

void Parking::note_stalled(uint32_t thread, uint64_t scan) {
  const uint64_t progress = order_.progress(thread);
  auto [it, inserted] = stalled_.try_emplace(thread);
  const bool still = !inserted && it->second.scan + 1 >= scan; // the previous scan found it stalled, too
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
