// The producers' side: from an effect on a device's thread to bytes in a ring.
//
// Every producing thread has a ring of its own. What a full ring means is a setting: the producer waits (nothing is
// lost), the newest record is dropped, or the oldest are. No Python lock is taken here.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <vector>

#include "record.h"
#include "release_order.h"
#include "replies.h"
#include "ring.h"

namespace effects {

enum class WhenFull : int { kWait = 0, kDropNewest = 1, kDropOldest = 2 };

struct Stats {
  std::atomic<uint64_t> published{0};  // records put into a ring
  std::atomic<uint64_t> released{0};   // records that left in order
  std::atomic<uint64_t> dropped{0};    // records lost because a ring was full
  std::atomic<uint64_t> cancelled{0};  // callbacks that could not run, because their program had failed
  std::atomic<uint64_t> waited{0};     // times a producer found its ring full and waited
  std::atomic<uint64_t> bytes{0};      // bytes published, headers included
  std::atomic<uint64_t> high_water{0}; // most bytes that one ring held
};

// One producing thread's ring, and what does not fit into it.
struct Lane {
  explicit Lane(size_t capacity) : ring(capacity) {}

  Ring ring;
  std::atomic<bool> abandoned{false}; // the producing thread has ended

  // Guards the consumer's side of the ring (the drain's, and the producer's own when it drops the oldest), and `kept`,
  // `drops` and `plain_dropped`. Uncontended but for a full ring.
  std::mutex consumer;
  std::vector<std::vector<std::byte>> kept; // what may not be dropped and found the ring full, or was the oldest in it
  std::vector<DropRange> drops;
  uint64_t plain_dropped = 0;        // plain records that were published, and dropped as the oldest
  std::atomic<bool> has_side{false}; // there is something in one of the three

  // A producer waits here for room. The flag spares the consumer the lock while nobody waits.
  std::mutex room_mutex;
  std::condition_variable room;
  std::atomic<bool> waiting{false};
};

class Publisher {
public:
  Publisher() {
    for (auto &slot : closed_) slot.store(~uint64_t{0}, std::memory_order_relaxed); // no thread has this number
  }
  Publisher(const Publisher &) = delete;

  // Set by the host; `ring_bytes` counts for rings made afterwards.
  std::atomic<size_t> ring_bytes{size_t{1} << 20};
  std::atomic<WhenFull> when_full{WhenFull::kWait};

  Stats stats;
  std::atomic<uint64_t> dispatches{0}; // mirrors ReleaseOrder's, for the stamp of plain records
  std::atomic<uint32_t> plain_index{0};
  std::atomic<uint64_t> plain_published{0};
  std::atomic<bool> stopped{false}; // nothing drains any more

  // Whether this program has published all it will. May say no for one that has; the drain knows in any case.
  bool has_closed(uint32_t thread, uint32_t epoch) const {
    return closed_[slot_of(thread, epoch)].load(std::memory_order_relaxed) == key_of(thread, epoch);
  }
  // One of the `devices` that run this program has; 0: there is but one.
  void note_closed(const Token &token, uint32_t devices) {
    const uint32_t thread = ThreadOf(token);
    const uint64_t key = key_of(thread, token.epoch);
    if (devices > 1) {
      std::lock_guard lock(closing_mutex_);
      const auto it = closing_.try_emplace(key, 0).first;
      if (++it->second < devices) return;
      closing_.erase(it);
    }
    closed_[slot_of(thread, token.epoch)].store(key, std::memory_order_relaxed);
  }
  // A program of this thread's that has failed does not close on all its devices.
  void forget_closing(uint32_t thread, uint32_t epoch) {
    std::lock_guard lock(closing_mutex_);
    closing_.erase(key_of(thread, epoch));
  }

  // How the drain is woken; see Drain. `roused`: there is something to do, in a while. `urgent`: somebody waits for it.
  std::mutex wake_mutex;
  std::condition_variable wake_condition;
  bool roused = false;                 // guarded by wake_mutex
  bool urgent = false;                 // guarded by wake_mutex
  std::atomic<int> barriers{0};        // threads that wait for records to leave
  std::atomic<int> nested_barriers{0}; // functions of the user's that wait for plain records

  // While the thread that leads the drain runs a function of the user's, it offers the lead. It is back in a moment
  // mostly, so that one which stands by takes the lead after a while only, or if somebody hurries it.
  std::condition_variable stand_by_condition;
  bool offered = false;   // guarded by wake_mutex
  bool hurried = false;   // guarded by wake_mutex
  std::thread::id leader; // guarded by wake_mutex

  void rouse() { wake(roused); }
  void wake() { wake(urgent); }

  // The function that the leader runs waits for the drain, or a device does that it may wait for.
  void hurry() {
    {
      std::lock_guard lock(wake_mutex);
      urgent = hurried = true;
    }
    wake_condition.notify_one();
    stand_by_condition.notify_all();
  }

private:
  void wake(bool &reason) {
    {
      std::lock_guard lock(wake_mutex);
      reason = true;
      if (offered) return; // the leader looks when it is back
    }
    wake_condition.notify_one();
  }

public:
  // Publishes one record. Returns false when it was dropped, which a marker never is, nor what a device waits
  // for.
  bool publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
               uint16_t flags = 0, uint32_t reply = 0) {
    size_t payload = 0;
    for (size_t i = 0; i < count; ++i) payload += RoundUp8(spans[i].size);
    Lane &lane = this_thread_lane();
    RecordHeader header{};
    header.kind = kind;
    header.site = site;
    header.token = token;
    header.device = device;
    header.reply = reply;
    header.payload_size = payload;

    const bool large = sizeof header + payload > lane.ring.capacity() / 4;
    header.flags = static_cast<uint16_t>(flags | (large ? kLarge : 0));
    header.size = static_cast<uint32_t>(sizeof header + (large ? sizeof(void *) : payload));

    Block block;
    if (large) {
      // Too large for the ring: the bytes travel beside it. What travels so is bounded as the ring is, except that one
      // record may always pass.
      if (!admit_large(lane, payload)) return must_stay(header) ? keep(lane, header, spans, count) : drop(lane, header);
      try {
        block = AllocateBlock(payload);
      } catch (...) {
        large_bytes_.fetch_sub(payload, std::memory_order_relaxed);
        throw;
      }
      copy(block.get(), spans, count);
    }
    std::byte *room = lane.ring.try_reserve(header.size);
    if (room == nullptr && (room = make_room(lane, header)) == nullptr) {
      if (large) large_bytes_.fetch_sub(payload, std::memory_order_relaxed);
      return must_stay(header) ? keep(lane, header, spans, count) : drop(lane, header);
    }
    std::memcpy(room, &header, sizeof header);
    if (large) {
      std::byte *const pointer = block.release();
      std::memcpy(room + sizeof header, &pointer, sizeof pointer);
    } else {
      copy(room + sizeof header, spans, count);
    }
    if (lane.ring.publish() || reply != 0) wake();

    stats.published.fetch_add(1, std::memory_order_relaxed);
    stats.bytes.fetch_add(sizeof header + payload, std::memory_order_relaxed);
    return true;
  }

  // Consumer: the block of a large record that has left its ring.
  Block take_large(const RecordHeader &header, const std::byte *payload) {
    std::byte *block;
    std::memcpy(&block, payload, sizeof block);
    large_bytes_.fetch_sub(header.payload_size, std::memory_order_relaxed);
    return Block(block);
  }

  // Consumer: calls `visit` for the lane of every thread that ever published, and forgets the lanes of threads that
  // have ended and left nothing. If `visit` returns false, stops, and the next call goes on with the next lane. Returns
  // whether all lanes have been visited.
  template <typename Visit>
  bool for_each_lane(Visit &&visit) {
    if (next_visited_ == visited_.size()) {
      std::lock_guard lock(lanes_mutex_);
      visited_ = lanes_;
      next_visited_ = 0;
    }
    while (next_visited_ < visited_.size()) {
      const auto &lane = visited_[next_visited_++];
      // Read before the visit: what an ended thread published is visible to it.
      const bool abandoned = lane->abandoned.load(std::memory_order_acquire);
      const bool go_on = visit(*lane);
      if (abandoned && lane->ring.used() == 0 && !lane->has_side.load(std::memory_order_acquire)) {
        std::lock_guard lock(lanes_mutex_);
        lanes_.erase(std::remove(lanes_.begin(), lanes_.end(), lane), lanes_.end());
      }
      if (!go_on) break;
    }
    return next_visited_ == visited_.size();
  }

  // Consumer: tells a producer that waits for room in `lane` that there is some.
  static void notify_room(Lane &lane) {
    // The fence orders our release of the bytes before the look at the flag; the producer's fence orders its flag
    // before its look at the bytes. One of the two sees the other.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lane.waiting.load(std::memory_order_relaxed)) {
      std::lock_guard lock(lane.room_mutex);
      lane.room.notify_one();
    }
  }

private:
  struct Handle {
    std::shared_ptr<Lane> lane;
    ~Handle() {
      if (lane) lane->abandoned.store(true, std::memory_order_release);
    }
  };

  Lane &this_thread_lane() {
    thread_local Handle handle;
    if (!handle.lane) {
      handle.lane = std::make_shared<Lane>(ring_bytes.load(std::memory_order_relaxed));
      std::lock_guard lock(lanes_mutex_);
      lanes_.push_back(handle.lane);
    }
    return *handle.lane;
  }

  static void copy(std::byte *to, const Span *spans, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (spans[i].size != 0) std::memcpy(to, spans[i].data, spans[i].size);
      to += RoundUp8(spans[i].size);
    }
  }

  bool admit_large(Lane &lane, size_t payload) {
    const size_t limit = 4 * lane.ring.capacity();
    for (bool counted = false;;) {
      size_t taken = large_bytes_.load(std::memory_order_relaxed);
      while (taken == 0 || taken + payload <= limit)
        if (large_bytes_.compare_exchange_weak(taken, taken + payload, std::memory_order_relaxed)) return true;
      const WhenFull mode = when_full.load(std::memory_order_relaxed);
      if (mode == WhenFull::kDropNewest || stopped.load(std::memory_order_relaxed)) return false;
      if (mode == WhenFull::kDropOldest) {
        // What the other lanes hold is not ours to drop: if ours is empty, it is the record itself that must go.
        std::lock_guard lock(lane.consumer);
        if (!drop_oldest(lane)) return false;
        continue;
      }
      if (!counted) stats.waited.fetch_add(1, std::memory_order_relaxed);
      counted = true;
      await_room(lane, [&] { return large_bytes_.load(std::memory_order_relaxed) < taken; });
    }
  }

  // The ring is full. Waits or drops until the record fits; null when it is the record itself that must go.
  std::byte *make_room(Lane &lane, const RecordHeader &header) {
    stats.high_water.store(std::max<uint64_t>(stats.high_water.load(std::memory_order_relaxed), lane.ring.used()),
                           std::memory_order_relaxed);
    if (when_full.load(std::memory_order_relaxed) == WhenFull::kDropNewest) return nullptr;
    if (when_full.load(std::memory_order_relaxed) == WhenFull::kWait)
      stats.waited.fetch_add(1, std::memory_order_relaxed);
    for (;;) {
      if (stopped.load(std::memory_order_relaxed)) return nullptr;
      if (when_full.load(std::memory_order_relaxed) == WhenFull::kDropOldest) {
        std::lock_guard lock(lane.consumer);
        drop_oldest(lane);
      } else {
        await_room(lane, [&] { return lane.ring.capacity() - lane.ring.used() >= 2 * size_t{header.size}; });
      }
      if (std::byte *room = lane.ring.try_reserve(header.size)) return room;
    }
  }

  template <typename Ready>
  void await_room(Lane &lane, Ready &&ready) {
    hurry();
    std::unique_lock lock(lane.room_mutex);
    lane.waiting.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst); // pairs with notify_room()
    // The time limit is for what no notification tells: `stopped`, and other lanes' large records.
    if (!ready()) lane.room.wait_for(lock, std::chrono::milliseconds(5));
    lane.waiting.store(false, std::memory_order_relaxed);
  }

  // With `lane.consumer` held. Returns false when the ring is empty.
  bool drop_oldest(Lane &lane) {
    const std::byte *oldest = lane.ring.front();
    if (oldest == nullptr) return false;
    RecordHeader header;
    std::memcpy(&header, oldest, sizeof header);
    if (must_stay(header)) {
      lane.kept.emplace_back(oldest, oldest + header.size);
    } else {
      if (header.flags & kLarge) take_large(header, oldest + sizeof header);
      note_drop(lane, header);
      if (ThreadOf(header.token) == kPlainThread) ++lane.plain_dropped;
    }
    lane.has_side.store(true, std::memory_order_release);
    lane.ring.pop();
    return true;
  }

  bool drop(Lane &lane, const RecordHeader &header) {
    std::lock_guard lock(lane.consumer);
    note_drop(lane, header);
    lane.has_side.store(true, std::memory_order_release);
    return false;
  }

  // With `lane.consumer` held. Runs of dropped indices are kept as one range.
  void note_drop(Lane &lane, const RecordHeader &header) {
    stats.dropped.fetch_add(1, std::memory_order_relaxed);
    if (header.kind != Kind::kOrdered) return;
    if (!lane.drops.empty()) {
      DropRange &last = lane.drops.back();
      if (last.first.stream == header.token.stream && last.first.epoch == header.token.epoch &&
          last.first.phase == header.token.phase && last.device == header.device &&
          last.first.index + static_cast<uint32_t>(last.count) == header.token.index) {
        ++last.count;
        return;
      }
    }
    lane.drops.push_back({header.token, 1, header.device});
  }

  static bool must_stay(const RecordHeader &header) { return IsMarker(header.kind) || header.reply != 0; }

  bool keep(Lane &lane, RecordHeader header, const Span *spans, size_t count) {
    header.flags &= static_cast<uint16_t>(~kLarge); // here the payload follows its header, whatever its size
    std::vector<std::byte> record(sizeof header + header.payload_size);
    std::memcpy(record.data(), &header, sizeof header);
    copy(record.data() + sizeof header, spans, count);
    std::lock_guard lock(lane.consumer);
    lane.kept.push_back(std::move(record));
    lane.has_side.store(true, std::memory_order_release);
    if (header.reply != 0) wake();
    return true;
  }

  static constexpr size_t kClosedSlots = 1024;
  static uint64_t key_of(uint32_t thread, uint32_t epoch) { return uint64_t{thread} << 32 | epoch; }
  static size_t slot_of(uint32_t thread, uint32_t epoch) { return (thread * 61 + epoch) % kClosedSlots; }
  std::atomic<uint64_t> closed_[kClosedSlots]; // by slot: the newest program that has closed
  std::mutex closing_mutex_;
  std::unordered_map<uint64_t, uint32_t> closing_; // guarded by closing_mutex_: how many devices of a program have

  std::mutex lanes_mutex_;
  std::vector<std::shared_ptr<Lane>> lanes_;   // guarded by lanes_mutex_
  std::vector<std::shared_ptr<Lane>> visited_; // the consumer's copy
  size_t next_visited_ = 0;                    // the consumer's
  std::atomic<size_t> large_bytes_{0};
};

} // namespace effects
