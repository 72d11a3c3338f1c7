// The consumer's side: takes records out of the rings, restores their order and turns them into a batch for Python.
//
// One host thread calls next_batch() in a loop. It holds no Python lock while it does; what it returns is text that
// only has to be written, and the records that Python must see.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
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

namespace effects {

// Text of consecutive records that go to one place, or one record for Python.
struct Item {
  bool is_text;
  EpochInfo info;
  std::string data;    // the text, or the record's payload
  RecordHeader header; // of a record for Python
};

struct Batch {
  std::vector<Item> items;
  std::vector<Finished> finished; // epochs that have ended: everything of theirs is in this batch or an earlier one
  uint64_t plain_released = 0;    // plain records so far, this batch included
  bool stopped = false;
};

class Drain {
public:
  explicit Drain(Publisher &publisher) : publisher_(publisher) {}

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
  void fail(uint32_t thread, uint32_t epoch) { notify({Notice::kFail, {thread, epoch, 0}, 0}); }

  // Host: the thread has ended and all its epochs have.
  void forget(uint32_t thread) {
    {
      std::lock_guard lock(inbox_mutex_);
      next_epoch_.erase(thread);
    }
    notify({Notice::kForget, {thread, 0, 0}, 0});
  }

  void set_plan(uint64_t site, Plan plan) {
    std::lock_guard lock(plans_mutex_);
    plans_[site] = std::make_shared<const Plan>(std::move(plan));
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
  }

  // Everything that can leave now. Waits for something to, but not longer than `patience` while programs are running;
  // for as long as it takes while none are.
  Batch next_batch(std::chrono::milliseconds patience) {
    Batch batch;
    batch_bytes_ = 0;
    pace();
    const auto start = std::chrono::steady_clock::now();
    auto pause = kFirstPause;
    for (;;) {
      bool again = true;
      while (again && batch_bytes_ < kBatchBytes) {
        bool moved = false;
        if (!scan(batch, moved)) break; // the batch is full: the next call goes on with this scan
        again = order_.advance([&](const auto &...args) { release(batch, args...); }, batch.finished) || moved;
      }
      const bool progress = !batch.items.empty() || !batch.finished.empty();
      adapt_parking();
      batch.plain_released = plain_released_;
      batch.stopped = publisher_.stopped.load(std::memory_order_relaxed);
      last_batch_ = std::chrono::steady_clock::now();
      if (progress || batch.stopped) return batch;

      bool idle;
      {
        // From here on an `open` wakes us, and a plain record does.
        std::lock_guard lock(inbox_mutex_);
        // A plain record that is parked waits for one before it, which may be dropped, and of that nobody tells.
        idle = order_.open_epochs() == 0 && order_.parked_bytes() == 0 && inbox_.empty() &&
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

  // What the host tells the drain, in the order of its saying.
  struct Notice {
    enum What { kOpen, kFail, kForget } what;
    EpochInfo info;
    uint64_t dispatch;
  };

  // Waits until the next batch may be taken.
  void pace() {
    std::unique_lock lock(publisher_.wake_mutex);
    publisher_.wake_condition.wait_until(lock, last_batch_ + kPace, [&] {
      return publisher_.urgent || publisher_.barriers.load(std::memory_order_relaxed) > 0;
    });
    publisher_.urgent = false;
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
        order_.open(notice.info, notice.dispatch);
        break;
      case Notice::kFail:
        order_.fail(notice.info.thread, notice.info.epoch);
        break;
      case Notice::kForget:
        order_.forget(notice.info.thread);
        break;
      }
    }
    reading_.clear();
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
    if (over) ++scans_;
    return over;
  }

  void accept(Batch &batch, const std::byte *record) {
    RecordHeader header;
    std::memcpy(&header, record, sizeof header);
    const std::byte *payload = record + sizeof header;
    std::byte *block = nullptr;
    if (header.large) {
      std::memcpy(&block, payload, sizeof block);
      payload = block;
      header.large = 0;
    }
    if (ThreadOf(header.token) == kPlainThread && header.kind != Kind::kClose) ++plain_taken_;
    order_.accept(header, payload, [&](const auto &...args) { release(batch, args...); });
    if (block != nullptr) publisher_.release_large(block, header.payload_size);
  }

  void release(Batch &batch, const RecordHeader &header, const std::byte *payload, const EpochInfo &info) {
    publisher_.stats.released.fetch_add(1, std::memory_order_relaxed);
    if (info.thread == kPlainThread) ++plain_released_;
    if (const Plan *plan = info.sink != 0 ? plan_of(header.site) : nullptr) {
      if (batch.items.empty() || !batch.items.back().is_text || batch.items.back().info.sink != info.sink)
        batch.items.push_back({true, info, {}, {}});
      std::string &text = batch.items.back().data;
      const size_t before = text.size();
      Format(text, *plan, payload);
      batch_bytes_ += text.size() - before;
    } else {
      batch.items.push_back(
          {false, info, std::string(reinterpret_cast<const char *>(payload), header.payload_size), header});
      batch_bytes_ += sizeof(Item) + header.payload_size;
    }
  }

  const Plan *plan_of(uint64_t site) {
    if (last_plan_ != nullptr && site == last_site_) return last_plan_.get();
    std::lock_guard lock(plans_mutex_);
    auto it = plans_.find(site);
    if (it == plans_.end()) return nullptr;
    last_site_ = site;
    last_plan_ = it->second;
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
    if (order_.parked_bytes() <= parking_limit_) {
      held_.clear();
      if (order_.parked_bytes() == 0)
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

  // This scan left one of `thread`'s records as the oldest in its ring.
  void hold(uint32_t thread) {
    const uint64_t progress = order_.progress(thread);
    auto [it, inserted] = held_.try_emplace(thread);
    it->second.scan = scans_;
    if (!inserted && it->second.progress == progress) return;
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

  std::mutex inbox_mutex_;
  std::vector<Notice> inbox_;                         // guarded by inbox_mutex_
  std::unordered_map<uint32_t, uint32_t> next_epoch_; // guarded by inbox_mutex_; by thread
  bool deep_sleep_ = false;                           // guarded by inbox_mutex_: the drain waits to be woken

  std::mutex plans_mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const Plan>> plans_; // guarded by plans_mutex_

  // The drain thread's own.
  ReleaseOrder order_;
  std::vector<Notice> reading_;
  uint64_t last_site_ = 0;
  std::shared_ptr<const Plan> last_plan_;
  uint64_t plain_taken_ = 0;
  uint64_t plain_released_ = 0;
  size_t batch_bytes_ = 0;
  size_t parking_limit_ = kParkingFactor * (size_t{1} << 20);
  std::unordered_map<uint32_t, Held> held_; // by thread
  uint64_t scans_ = 0;                      // that are over
  std::chrono::steady_clock::time_point last_batch_{};
};

} // namespace effects
