#include "publisher.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

namespace effects {
namespace {

uint64_t NewId() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// The calling thread's rings, by publisher id: an address may be reused by another publisher.
class ThreadRings {
public:
  ~ThreadRings() {
    for (auto &[publisher, ring] : rings_) ring->abandoned.store(true, std::memory_order_release);
  }
  ProducerRing *find(uint64_t publisher) const {
    for (auto &[id, ring] : rings_)
      if (id == publisher) return ring.get();
    return nullptr;
  }
  void add(uint64_t publisher, std::shared_ptr<ProducerRing> ring) {
    // A ring without another owner belonged to a destroyed publisher.
    rings_.erase(std::remove_if(rings_.begin(), rings_.end(), [](auto &one) { return one.second.use_count() == 1; }),
                 rings_.end());
    rings_.emplace_back(publisher, std::move(ring));
  }

private:
  std::vector<std::pair<uint64_t, std::shared_ptr<ProducerRing>>> rings_;
};
thread_local ThreadRings thread_rings;

// The ring that the calling thread used last, and nearly always uses next.
struct LastRing {
  uint64_t publisher; // 0: none
  ProducerRing *ring;
};
__attribute__((tls_model("initial-exec"))) // read for every record, and small
thread_local LastRing last_ring{0, nullptr};

void Copy(std::byte *to, const Span *spans, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (spans[i].size != 0) std::memcpy(to, spans[i].data, spans[i].size);
    to += RoundUp8(spans[i].size);
  }
}

bool MustStay(const RecordHeader &header) {
  return IsMarker(header.kind) || header.reply != 0 || (header.flags & kAwaited) != 0;
}

} // namespace

void Stats::note_high_water(uint64_t used) {
  if (used > high_water.load(std::memory_order_relaxed)) high_water.store(used, std::memory_order_relaxed);
}

double UnixTime() {
  timespec now; // not chrono's clock, which divides: called for every tapped record
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Publisher::Publisher(WakeUp &wake_up) : wake_up_(wake_up), id_(NewId()) {}

inline ProducerRing &Publisher::this_thread_ring() {
  return last_ring.publisher == id_ ? *last_ring.ring : make_ring();
}

bool Publisher::publish(Kind kind, uint64_t site, const Token &token, int32_t device, const Span *spans, size_t count,
                        uint16_t flags, uint32_t reply, Block *own) {
  size_t payload = 0;
  for (size_t i = 0; i < count; ++i) payload += RoundUp8(spans[i].size);
  ProducerRing &mine = this_thread_ring();
  RecordHeader header{};
  header.kind = kind;
  header.flags = flags;
  header.site = site;
  header.token = token;
  header.device = device;
  header.reply = reply;
  header.payload_size = payload;
  if (time_users.load(std::memory_order_relaxed) != 0) header.time = UnixTime();
  if (Tap *const tapped = tap.load(std::memory_order_acquire)) tapped->take(header, spans, count);

  const bool large = sizeof header + payload > mine.ring.capacity() / 4;
  if (large) header.flags |= kLarge;
  header.size = static_cast<uint32_t>(sizeof header + (large ? sizeof(void *) : payload));

  Block block;
  if (large) {
    // Too large for the ring: the payload travels in a block. The sum of such blocks is bounded as the ring is, except
    // that one record may always pass.
    if (!admit_large(mine, payload)) return MustStay(header) ? keep(mine, header, spans, count) : drop(mine, header);
    if (own != nullptr) {
      block = std::move(*own);
    } else {
      try {
        block = AllocateBlock(payload);
      } catch (...) {
        large_bytes_.fetch_sub(payload, std::memory_order_relaxed);
        leave_out(mine, header);
        throw;
      }
      Copy(block.get(), spans, count);
    }
  }
  std::byte *room = mine.ring.try_reserve(header.size);
  if (room == nullptr && (room = make_room(mine, header)) == nullptr) {
    if (large) large_bytes_.fetch_sub(payload, std::memory_order_relaxed);
    return MustStay(header) ? keep(mine, header, spans, count) : drop(mine, header);
  }
  std::memcpy(room, &header, sizeof header);
  if (large) {
    std::byte *const pointer = block.release();
    std::memcpy(room + sizeof header, &pointer, sizeof pointer);
  } else {
    Copy(room + sizeof header, spans, count);
  }
  if (mine.ring.publish() || reply != 0) wake_up_.wake_now();

  mine.count(!IsMarker(kind), sizeof header + payload);
  return true;
}

void Publisher::skip(const Token &token, int32_t device) { this_thread_ring().skip(token, device); }

void Publisher::note(Kind kind, const Token &token, std::string_view text, uint64_t site, int32_t device) {
  Tap *const tapped = tap.load(std::memory_order_acquire);
  if (tapped == nullptr) return;
  RecordHeader header{};
  header.kind = kind;
  header.site = site;
  header.token = token;
  header.device = device;
  header.payload_size = RoundUp8(text.size());
  const Span span{text.data(), text.size()};
  tapped->take(header, &span, 1);
}

Block Publisher::take_large(const RecordHeader &header, const std::byte *payload) {
  std::byte *block;
  std::memcpy(&block, payload, sizeof block);
  large_bytes_.fetch_sub(header.payload_size, std::memory_order_relaxed);
  return Block(block);
}

void Publisher::refuse(std::string why) {
  why_refused_ = std::move(why);
  last_ring = {0, nullptr}; // so that the next record goes through make_ring()
}

void Publisher::throw_if_refused() const {
  if (refuses()) throw std::runtime_error(why_refused_);
}

ProducerRing &Publisher::make_ring() {
  throw_if_refused();
  ProducerRing *mine = thread_rings.find(id_);
  if (mine == nullptr) {
    auto ring = std::make_shared<ProducerRing>(ring_bytes.load(std::memory_order_relaxed));
    mine = ring.get();
    {
      std::lock_guard lock(rings_mutex_);
      rings_.push_back(ring);
    }
    thread_rings.add(id_, std::move(ring));
  }
  last_ring = {id_, mine};
  return *mine;
}

bool Publisher::admit_large(ProducerRing &mine, size_t payload) {
  const size_t limit = 4 * mine.ring.capacity();
  for (bool counted = false;;) {
    size_t taken = large_bytes_.load(std::memory_order_relaxed);
    while (taken == 0 || taken + payload <= limit)
      if (large_bytes_.compare_exchange_weak(taken, taken + payload, std::memory_order_relaxed)) return true;
    if (when_full.load(std::memory_order_relaxed) == WhenFull::kDrop || wake_up_.stopped()) return false;
    if (!counted) stats.waited.fetch_add(1, std::memory_order_relaxed);
    counted = true;
    wake_up_.set_offer_urgent();
    mine.await_room([&] { return large_bytes_.load(std::memory_order_relaxed) < taken; });
  }
}

// The ring is full. Waits until the record fits; null when it must go.
std::byte *Publisher::make_room(ProducerRing &mine, const RecordHeader &header) {
  stats.note_high_water(mine.ring.used());
  for (bool counted = false;;) {
    if (when_full.load(std::memory_order_relaxed) == WhenFull::kDrop || wake_up_.stopped()) return nullptr;
    if (!counted) stats.waited.fetch_add(1, std::memory_order_relaxed);
    counted = true;
    wake_up_.set_offer_urgent();
    mine.await_room([&] { return mine.ring.capacity() - mine.ring.used() >= 2 * size_t{header.size}; });
    if (std::byte *room = mine.ring.try_reserve(header.size)) return room;
  }
}

bool Publisher::drop(ProducerRing &mine, const RecordHeader &header) {
  mine.count(true, 0);
  stats.dropped.fetch_add(1, std::memory_order_relaxed);
  leave_out(mine, header);
  return false;
}

// The record is dropped, and no later record waits for it.
void Publisher::leave_out(ProducerRing &mine, const RecordHeader &header) {
  std::lock_guard lock(mine.consumer);
  mine.note_drop(header);
}

bool Publisher::keep(ProducerRing &mine, RecordHeader header, const Span *spans, size_t count) {
  header.flags &= static_cast<uint16_t>(~kLarge); // on the side list the payload follows its header
  std::vector<std::byte> record;
  try {
    record.resize(sizeof header + header.payload_size);
  } catch (...) {
    leave_out(mine, header);
    throw;
  }
  std::memcpy(record.data(), &header, sizeof header);
  Copy(record.data() + sizeof header, spans, count);
  mine.count(!IsMarker(header.kind), 0);
  std::lock_guard lock(mine.consumer);
  mine.keep(std::move(record));
  if (header.reply != 0) wake_up_.wake_now();
  return true;
}

Published Publisher::count_published() {
  std::lock_guard lock(rings_mutex_);
  Published all = published_before_;
  for (const auto &ring : rings_) all += ring->published();
  return all;
}

void Publisher::copy_rings() {
  std::lock_guard lock(rings_mutex_);
  visited_ = rings_;
  next_visited_ = 0;
}

void Publisher::forget_ring(const std::shared_ptr<ProducerRing> &ring) {
  std::lock_guard lock(rings_mutex_);
  published_before_ += ring->published();
  rings_.erase(std::remove(rings_.begin(), rings_.end(), ring), rings_.end());
}

} // namespace effects
