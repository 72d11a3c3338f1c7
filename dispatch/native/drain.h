// The consumer's side: takes records out of the rings, restores their order and turns them into a batch for Python.
//
// One host thread leads: it calls next_batch() in a loop and replays what it gets. It holds no Python lock while it
// waits; what it gets is text that only has to be written, and records that Python must see, whose replay may run
// functions of the user's. Meanwhile it offers the lead to a thread that stands by, so that a
// function which waits for other effects does not wait in vain. A batch ends with such records of one
// thread's programs, and that thread's stream is held until they have been replayed.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format.h"
#include "publisher.h"
#include "record.h"
#include "release_order.h"
#include "replies.h"
#include "sites.h"

namespace effects {

struct Item {
  enum What {
    kText,    // of consecutive records that go to one place
    kRecords, // consecutive records of one epoch, headers included
    kLarge,   // a large record by itself
  } what;
  EpochInfo info;
  uint64_t count;     // how many records it stands for
  std::string data;   // the text, the records, or the large one's header
  Block block;        // the large one's payload
  uint64_t size = 0;  // of it
  bool calls = false; // some of them are of callbacks
  bool asked = false; // somebody waits for the last of these
};

struct Batch {
  std::vector<Item> items;
  // Epochs that have ended: everything of theirs is in this batch or an earlier one.
  std::vector<Finished> finished;
  std::vector<uint64_t> forgotten;      // sites of which no record will come
  uint64_t plain_released = 0;          // plain records that have been replayed once this batch has
  uint64_t plain_in_run = 0;            // and how many more once those have been replayed and it is resumed
  uint32_t run = ReleaseOrder::kNobody; // the thread of whose programs this batch has records for Python
  bool ordered_run = false;             // whether one of them is ordered

  // The thread that is held while they run, and to be resumed. Plain records wait for an ordered one only.
  uint32_t held() const { return run == kPlainThread && !ordered_run ? ReleaseOrder::kNoThread : run; }
  bool stopped = false;
};

class Drain {
public:
  Drain(Publisher &publisher, Sites &sites, Replies &replies)
      : publisher_(publisher), sites_(sites), replies_(replies) {}

  // Host: `thread` is about to dispatch a program whose text goes to `sink` (0: Python formats it). Returns the number
  // of its epoch. Never waits for the drain.
  uint32_t open(uint32_t thread, uint64_t sink) {
    bool asleep;
    uint32_t epoch;
    {
      std::lock_guard lock(inbox_mutex_);
      epoch = next_epoch_[thread]++;
      const uint64_t dispatch = publisher_.dispatches.fetch_add(1, std::memory_order_relaxed) + 1;
      inbox_.push_back({Notice::kOpen, {thread, epoch, sink}, dispatch});
      asleep = std::exchange(deep_sleep_, false);
    }
    if (asleep) publisher_.rouse();
    return epoch;
  }

  // Host: the program of this epoch failed or never ran.
  void fail(uint32_t thread, uint32_t epoch) {
    replies_.forget_replicated(thread, epoch);
    publisher_.forget_closing(thread, epoch);
    notify({Notice::kFail, {thread, epoch, 0}, 0});
  }

  // Host: the thread has ended and all its epochs have.
  void forget(uint32_t thread) {
    {
      std::lock_guard lock(inbox_mutex_);
      next_epoch_.erase(thread);
    }
    notify({Notice::kForget, {thread, 0, 0}, 0});
  }

  // Host: a batch's records for Python have been replayed, `plain` of them plain.
  void resume(uint32_t thread, uint64_t plain) { notify({Notice::kResume, {thread, 0, 0}, plain}); }

  // Host: programs that this thread dispatches are part of effects that are being replayed.
  void nest(uint32_t thread) { notify({Notice::kNest, {thread, 0, 0}, 0}); }

  // A loaded program, or one that may be, has no more use for a site.
  void release_site(uint64_t site) {
    sites_.release(site, publisher_.dispatches.load(std::memory_order_relaxed),
                   publisher_.plain_published.load(std::memory_order_acquire));
    bool asleep;
    {
      std::lock_guard lock(inbox_mutex_);
      asleep = std::exchange(deep_sleep_, false);
    }
    if (asleep) publisher_.rouse();
  }

  // Whether all records go to Python, also those that native code could format.
  void show_python(bool all) { python_sees_all_.store(all, std::memory_order_relaxed); }

  // A thread that wants to lead waits until nobody does, or until the leader has offered the lead and is busy with
  // something else for long enough. False: the thread may end.
  bool stand_by() {
    std::unique_lock lock(publisher_.wake_mutex);
    if (led_ && standing_by_ >= kEnoughStandingBy) return false;
    ++standing_by_;
    for (int quiet = 0;;) {
      const bool take_offer = publisher_.offered && publisher_.hurried;
      if (!led_ || take_offer) break;
      if (stopped()) {
        --standing_by_;
        return false;
      }
      const uint64_t offers = offers_;
      const auto wanted = [&] { return !led_ || stopped() || (publisher_.offered && publisher_.hurried); };
      if (quiet < kQuietLooks) {
        publisher_.stand_by_condition.wait_for(lock, kOfferPatience, wanted);
        if (publisher_.offered && offers == offers_) publisher_.hurried = true; // the same offer for all that time
        quiet = offers == offers_ ? quiet + 1 : 0;
      } else {
        asleep_ = true;
        publisher_.stand_by_condition.wait(lock, [&] { return wanted() || !asleep_; });
        quiet = 0;
      }
    }
    --standing_by_;
    lead();
    return true;
  }

  // The leader is about to do something else. Returns how many threads stand by.
  int offer() {
    std::lock_guard lock(publisher_.wake_mutex);
    publisher_.offered = true;
    ++offers_;
    if (std::exchange(asleep_, false) || publisher_.hurried) publisher_.stand_by_condition.notify_all();
    return standing_by_;
  }

  // It has done it. False if another thread leads by now.
  bool reclaim() {
    std::lock_guard lock(publisher_.wake_mutex);
    if (!publisher_.offered || publisher_.leader != std::this_thread::get_id()) return false;
    lead();
    return true;
  }

  // The leader leads no more.
  void leave() {
    std::lock_guard lock(publisher_.wake_mutex);
    led_ = false;
    publisher_.stand_by_condition.notify_all();
  }

  // Called by a handler after it published a record that no `open` announced.
  void plain_published() {
    publisher_.plain_published.fetch_add(1, std::memory_order_release);
    bool asleep;
    {
      std::lock_guard lock(inbox_mutex_);
      asleep = std::exchange(deep_sleep_, false);
    }
    if (asleep) publisher_.rouse();
  }

  void stop() {
    publisher_.stopped.store(true, std::memory_order_relaxed);
    publisher_.wake();
    std::lock_guard lock(publisher_.wake_mutex);
    publisher_.stand_by_condition.notify_all();
  }

  // Nothing drains any more: who still waits for an answer gets none.
  void fail_replies(const std::string &why) {
    for (const uint32_t number : replies_.open()) replies_.fail(number, why);
  }

  // Everything that can leave now. Waits for something to, but not longer than `patience` while programs are running;
  // for as long as it takes while none are.
  Batch next_batch(std::chrono::milliseconds patience) {
    Batch batch;
    batch_bytes_ = 0;
    take_carried(batch);
    pace();
    const auto start = std::chrono::steady_clock::now();
    auto pause = kFirstPause;
    for (;;) {
      bool again = true;
      while (again && batch_bytes_ < kBatchBytes) {
        bool moved = false;
        if (!scan(batch, moved)) break; // the batch is full: the next call goes on with this scan
        again = order_.advance([&](auto &&...args) { release(batch, std::forward<decltype(args)>(args)...); },
                               batch.finished) ||
                moved;
        if (run_closed_) break; // somebody waits for what is here
      }
      adapt_parking();
      relax_stuck();
      if (batch.run == ReleaseOrder::kNobody && !order_.any_held() && sites_.any_dying())
        batch.forgotten = sites_.forget(order_.oldest_open(), plain_released_);
      batch.plain_released = plain_released_;
      batch.stopped = stopped();
      const bool progress =
          !batch.items.empty() || !batch.finished.empty() || !batch.forgotten.empty() || std::exchange(resumed_, false);
      last_batch_ = std::chrono::steady_clock::now();
      if (batch.run != ReleaseOrder::kNobody) end_run(batch);
      if (progress || batch.stopped) return batch;

      bool idle;
      {
        // From here on an `open` wakes us, and a plain record does.
        std::lock_guard lock(inbox_mutex_);
        // A plain record that is parked waits for one before it, which may be dropped, and of that nobody tells.
        idle = order_.open_epochs() == 0 && order_.parked_bytes() == 0 && inbox_.empty() && carried_.empty() &&
               publisher_.plain_published.load(std::memory_order_acquire) == plain_taken_;
        deep_sleep_ = idle;
      }
      if (idle) {
        sleep();
        pace();
      } else {
        pause_for(pause);
        pause = std::min(2 * pause, kLongestPause);
        if (std::chrono::steady_clock::now() - start > patience) return batch;
      }
    }
  }

private:
  // While programs run nobody wakes the drain for a record; it looks by itself, so that records travel in batches.
  static constexpr std::chrono::microseconds kFirstPause{500};
  static constexpr std::chrono::microseconds kLongestPause{4000};
  // And it looks no more often than this, unless somebody waits or a ring is half full: a batch costs Python's lock,
  // which a thread that dispatches needs too.
  static constexpr std::chrono::microseconds kPace{10000};
  static constexpr size_t kBatchBytes = size_t{1} << 18;
  static constexpr std::chrono::milliseconds kParkingPatience{100};
  // A thread that stands by takes an offer that is this old, and sleeps when it has seen none for so many looks.
  static constexpr std::chrono::milliseconds kOfferPatience{1};
  static constexpr int kQuietLooks = 16;
  static constexpr int kEnoughStandingBy = 2;

  bool stopped() const { return publisher_.stopped.load(std::memory_order_relaxed); }

  // With `wake_mutex` held: the calling thread leads.
  void lead() {
    led_ = true;
    publisher_.offered = false;
    publisher_.hurried = false;
    publisher_.leader = std::this_thread::get_id();
  }

  // What the host tells the drain, in the order of its saying.
  struct Notice {
    enum What { kOpen, kFail, kForget, kResume, kNest } what;
    EpochInfo info;
    uint64_t number; // of the dispatch that is opened; how many plain records have been replayed with what is resumed
  };

  // Waits until the next batch may be taken.
  void pace() {
    std::unique_lock lock(publisher_.wake_mutex);
    publisher_.wake_condition.wait_until(lock, last_batch_ + kPace, [&] {
      return publisher_.urgent || publisher_.barriers.load(std::memory_order_relaxed) > 0;
    });
    publisher_.urgent = publisher_.hurried = false; // we look now
  }

  // Waits while programs run.
  void pause_for(std::chrono::microseconds time) {
    std::unique_lock lock(publisher_.wake_mutex);
    publisher_.wake_condition.wait_for(lock, time, [&] { return publisher_.urgent; });
    publisher_.urgent = false;
  }

  // Waits until there is something to wait for.
  void sleep() {
    std::unique_lock lock(publisher_.wake_mutex);
    publisher_.wake_condition.wait(lock, [&] { return publisher_.roused || publisher_.urgent; });
    publisher_.roused = false;
    last_batch_ = std::chrono::steady_clock::now();
  }

  void notify(const Notice &notice) {
    bool asleep;
    {
      std::lock_guard lock(inbox_mutex_);
      inbox_.push_back(notice);
      asleep = std::exchange(deep_sleep_, false);
    }
    if (asleep) publisher_.rouse();
  }

  void read_inbox() {
    {
      std::lock_guard lock(inbox_mutex_);
      std::swap(inbox_, reading_);
    }
    // A program that was announced after a plain record was published comes after it.
    if (publisher_.plain_published.load(std::memory_order_acquire) != 0) order_.expect_plain();
    for (const Notice &notice : reading_) {
      switch (notice.what) {
      case Notice::kOpen:
        order_.open(notice.info, notice.number);
        break;
      case Notice::kFail:
        order_.fail(notice.info.thread, notice.info.epoch);
        break;
      case Notice::kForget:
        order_.forget(notice.info.thread);
        break;
      case Notice::kResume:
        order_.resume(notice.info.thread);
        plain_released_ += notice.number;
        resumed_ = true;
        break;
      case Notice::kNest:
        order_.nest(notice.info.thread);
        break;
      }
    }
    reading_.clear();
    order_.impatient(publisher_.nested_barriers.load(std::memory_order_relaxed) > 0);
  }

  // Takes what is in the rings, in all of them and to their ends: ReleaseOrder counts on that, and no fast producer may
  // keep us from the others. A batch that is full interrupts a scan between two rings. Returns whether the scan is
  // over; sets `moved` when anything was taken.
  bool scan(Batch &batch, bool &moved) {
    read_inbox();
    const bool over = publisher_.for_each_lane([&](Lane &lane) {
      std::unique_lock consumer(lane.consumer);
      if (lane.has_side.load(std::memory_order_acquire)) {
        read_inbox(); // the host announced these programs before they ran, but perhaps after we last read
        auto kept = std::move(lane.kept);
        auto drops = std::move(lane.drops);
        lane.kept.clear();
        lane.drops.clear();
        plain_taken_ += lane.plain_dropped;
        plain_released_ += std::exchange(lane.plain_dropped, 0);
        lane.has_side.store(false, std::memory_order_release);
        for (const DropRange &range : drops) order_.accept_drop(range);
        for (const auto &record : kept) accept(batch, record.data());
        moved = true;
      }
      note_high_water(lane);
      bool held = false;
      const bool taken = lane.ring.take([&](const std::byte *record) {
        RecordHeader header;
        std::memcpy(&header, record, sizeof header);
        if (!order_.knows(header)) read_inbox(); // as above
        if (order_.parked_bytes() > parking_limit_ && !order_.releasable(header)) {
          if (!std::exchange(held, true)) hold(ThreadOf(header.token));
          return false;
        }
        accept(batch, record);
        return true;
      });
      consumer.unlock();
      if (taken) {
        Publisher::notify_room(lane);
        moved = true;
      }
      return batch_bytes_ < kBatchBytes;
    });
    // With no lock held: it may run the rest of a program.
    for (const uint32_t reply : std::exchange(late_, {}))
      replies_.fail(reply, "The program had failed before its turn came.");
    if (over) ++scans_;
    return over;
  }

  void accept(Batch &batch, const std::byte *record) {
    RecordHeader header;
    std::memcpy(&header, record, sizeof header);
    Payload payload{record + sizeof header, header.payload_size, nullptr};
    if (header.flags & kLarge) {
      payload.block = publisher_.take_large(header, payload.data);
      payload.data = payload.block.get();
    }
    if (ThreadOf(header.token) == kPlainThread && !IsMarker(header.kind)) ++plain_taken_;
    const bool wanted = order_.accept(header, std::move(payload),
                                      [&](auto &&...args) { release(batch, std::forward<decltype(args)>(args)...); });
    if (!wanted && header.reply != 0) {
      publisher_.stats.cancelled.fetch_add(1, std::memory_order_relaxed);
      late_.push_back(header.reply);
    }
  }

  void release(Batch &batch, const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
    publisher_.stats.released.fetch_add(1, std::memory_order_relaxed);
    const bool callback = (header.flags & kCallback) != 0;
    const bool native = !callback && info.sink != 0 && !python_sees_all_.load(std::memory_order_relaxed);
    const Plan *const plan = native ? plan_of(header.site) : nullptr;
    if (plan == nullptr) { // handlers, like callbacks, are functions of the user's
      if (batch.run == ReleaseOrder::kNobody) begin_run(batch, info.thread);
      if (header.kind == Kind::kOrdered) batch.ordered_run = true;
    }
    // Nothing of another thread's is to wait behind the functions of one: what is unordered goes into the next batch.
    const bool carry = batch.run != ReleaseOrder::kNobody && (run_closed_ || batch.run != info.thread);
    if (!carry) count_plain(batch, info, 1);
    auto &items = carry ? carried_ : batch.items;
    const auto has = [&](Item::What what) {
      return !items.empty() && items.back().what == what && items.back().info.thread == info.thread;
    };
    const auto begin = [&](Item::What what) -> Item & {
      Item &item = items.emplace_back();
      item.what = what;
      item.info = info;
      return item;
    };
    if (plan != nullptr) {
      Item &item = has(Item::kText) && items.back().info.sink == info.sink ? items.back() : begin(Item::kText);
      const size_t before = item.data.size();
      Format(item.data, *plan, payload.data);
      batch_bytes_ += item.data.size() - before;
    } else {
      const bool large = static_cast<bool>(payload.block);
      const bool joins = !large && has(Item::kRecords) && items.back().info.epoch == info.epoch &&
                         !items.back().asked && items.back().info.failed == info.failed;
      Item &item = joins ? items.back() : begin(large ? Item::kLarge : Item::kRecords);
      RecordHeader shown = header;
      if ((shown.flags & kReplicated) != 0) shown.device = kAllDevices; // whichever was heard first
      item.data.append(reinterpret_cast<const char *>(&shown), sizeof shown);
      if (large) {
        item.block = std::move(payload.block);
        item.size = header.payload_size;
      } else {
        item.data.append(reinterpret_cast<const char *>(payload.data), header.payload_size);
      }
      item.calls = item.calls || callback;
      item.asked = callback && header.reply != 0;
      if (item.asked && !carry) close_run();
      batch_bytes_ += sizeof header + header.payload_size;
    }
    ++items.back().count;
  }

  // The batch has records for Python of this thread's programs. It ends with them.
  void begin_run(Batch &batch, uint32_t thread) {
    batch.run = thread;
    order_.only(thread);
  }

  // What comes last in the batch is waited for. Its answer lets a program go on, which must not wait for what the batch
  // holds.
  void close_run() {
    run_closed_ = true;
    order_.only(ReleaseOrder::kNoThread);
  }

  void end_run(const Batch &batch) {
    run_closed_ = false;
    order_.only(ReleaseOrder::kNobody);
    order_.hold(batch.held());
  }

  void count_plain(Batch &batch, const EpochInfo &info, uint64_t count) {
    if (info.thread == kPlainThread) (batch.run == kPlainThread ? batch.plain_in_run : plain_released_) += count;
  }

  void take_carried(Batch &batch) {
    std::vector<Item> rest;
    for (Item &item : carried_) {
      if (batch.run != ReleaseOrder::kNobody && (run_closed_ || batch.run != item.info.thread)) {
        rest.push_back(std::move(item));
        continue;
      }
      if (item.what != Item::kText && batch.run == ReleaseOrder::kNobody) begin_run(batch, item.info.thread);
      if (item.asked) close_run();
      count_plain(batch, item.info, item.count);
      batch.items.push_back(std::move(item));
    }
    carried_ = std::move(rest);
  }

  const Plan *plan_of(uint64_t site) {
    if (last_plan_ == nullptr || site != last_site_) {
      auto plan = sites_.plan(site);
      if (plan == nullptr) return nullptr;
      last_site_ = site;
      last_plan_ = std::move(plan);
    }
    return last_plan_.get();
  }

  void note_high_water(const Lane &lane) {
    const uint64_t used = lane.ring.used();
    if (used > publisher_.stats.high_water.load(std::memory_order_relaxed))
      publisher_.stats.high_water.store(used, std::memory_order_relaxed);
  }

  // Records that came before their turn are parked in memory, up to a limit; beyond it they stay in their rings, and
  // their producers wait. If then nothing of their thread's leaves for a while, the program whose turn it is may need
  // the very threads that wait: the limit is raised, so that memory is the price and never a hang.
  void adapt_parking() {
    if (order_.parked_bytes() == 0) {
      held_.clear();
      parking_limit_ = kParkingFactor * publisher_.ring_bytes.load(std::memory_order_relaxed);
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    for (const auto &[thread, held] : held_) {
      if (held.scan + 1 < scans_ || now - held.since <= kParkingPatience) continue;
      parking_limit_ *= 2;
      held_.clear();
      return;
    }
  }

  // A device that waits for its answer may be what the device whose turn it is waits for. That is taken to be so if
  // nothing of their program's has come or left for long.
  void relax_stuck() {
    const auto now = std::chrono::steady_clock::now();
    std::unordered_map<uint32_t, Still> still;
    std::vector<uint32_t> stuck;
    order_.for_each_perhaps_stuck([&](uint32_t thread, uint64_t progress) {
      auto before = still_.find(thread);
      const bool same = before != still_.end() && before->second.progress == progress;
      still[thread] = {progress, same ? before->second.since : now};
      if (now - still[thread].since > kStuckPatience) stuck.push_back(thread);
    });
    still_ = std::move(still);
    for (const uint32_t thread : stuck) order_.relax(thread);
  }
  struct Still {
    uint64_t progress;
    std::chrono::steady_clock::time_point since;
  };
  static constexpr std::chrono::seconds kStuckPatience{2};
  std::unordered_map<uint32_t, Still> still_; // by thread: of those who may be stuck

  // This scan left one of `thread`'s records as the oldest in its ring.
  void hold(uint32_t thread) {
    const uint64_t progress = order_.progress(thread);
    auto [it, inserted] = held_.try_emplace(thread);
    const bool still = !inserted && it->second.scan + 1 >= scans_; // the scan before found it so, too
    it->second.scan = scans_;
    if (still && it->second.progress == progress) return;
    it->second.progress = progress;
    it->second.since = std::chrono::steady_clock::now();
  }
  struct Held {
    uint64_t scan;     // the last one that found it so; of interest if not older than the last one that is over
    uint64_t progress; // ReleaseOrder's, at `since`
    std::chrono::steady_clock::time_point since;
  };
  static constexpr size_t kParkingFactor = 8;

  Publisher &publisher_;
  Sites &sites_;
  Replies &replies_;
  std::atomic<bool> python_sees_all_{false};

  // Guarded by the publisher's wake_mutex.
  bool led_ = false;
  bool asleep_ = false; // those that stand by sleep until there is an offer
  int standing_by_ = 0;
  uint64_t offers_ = 0;

  std::mutex inbox_mutex_;
  std::vector<Notice> inbox_;                         // guarded by inbox_mutex_
  std::unordered_map<uint32_t, uint32_t> next_epoch_; // guarded by inbox_mutex_; by thread
  bool deep_sleep_ = false;                           // guarded by inbox_mutex_: the drain waits to be woken

  // The leader's own.
  ReleaseOrder order_;
  std::vector<Item> carried_; // for the next batch
  bool run_closed_ = false;   // the batch takes no more
  bool resumed_ = false;      // since the last batch
  std::vector<Notice> reading_;
  uint64_t last_site_ = 0;
  std::shared_ptr<const Plan> last_plan_;
  uint64_t plain_taken_ = 0;
  uint64_t plain_released_ = 0;
  size_t batch_bytes_ = 0;
  size_t parking_limit_ = kParkingFactor * (size_t{1} << 20);
  std::unordered_map<uint32_t, Held> held_; // by thread
  std::vector<uint32_t> late_;              // who is to be answered after the scan
  uint64_t scans_ = 0;                      // that are over
  std::chrono::steady_clock::time_point last_batch_{};
};

} // namespace effects
