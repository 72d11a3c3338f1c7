// The ring: one producer, one consumer, nothing lost, nothing reordered, nothing overwritten too early.
#include "dispatch/native/producer/ring.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

namespace effects::ring_test {
namespace {

using check::Random;

constexpr size_t kSmallest = 4096;

// A record here is a size, a kind and bytes that follow from `number`; the ring looks at nothing else.
void Fill(std::byte *at, size_t size, uint64_t number) {
  const uint32_t size32 = static_cast<uint32_t>(size);
  const Kind kind = Kind::kOrdered;
  std::memcpy(at, &size32, sizeof size32);
  std::memcpy(at + 4, &kind, sizeof kind);
  for (size_t i = 6; i < size; ++i) at[i] = static_cast<std::byte>(number * 31 + i);
}

void CheckFilled(const std::byte *at, size_t size, uint64_t number) {
  uint32_t size32;
  std::memcpy(&size32, at, sizeof size32);
  CHECK_EQ(size32, size);
  for (size_t i = 6; i < size; ++i) CHECK(at[i] == static_cast<std::byte>(number * 31 + i));
}

bool Push(Ring &ring, size_t size, uint64_t number) {
  std::byte *room = ring.try_reserve(size);
  if (room == nullptr) return false;
  Fill(room, size, number);
  ring.publish();
  return true;
}

bool IsEmpty(Ring &ring) {
  bool any = false;
  ring.take(ring.end(), [&](const std::byte *) {
    any = true;
    return false;
  });
  return !any;
}

// Takes the oldest record.
void Pop(Ring &ring, size_t size, uint64_t number) {
  bool is_first = true;
  CHECK(ring.take(ring.end(), [&](const std::byte *record) {
    if (!std::exchange(is_first, false)) return false;
    CheckFilled(record, size, number);
    return true;
  }));
}

// The capacity is the next power of two, and at least one page.
TEST(test_ring_rounds_its_capacity_up) {
  CHECK_EQ(Ring(1).capacity(), size_t{4096});
  CHECK_EQ(Ring(4096).capacity(), size_t{4096});
  CHECK_EQ(Ring(4097).capacity(), size_t{8192});
}

// Nothing is taken from an empty ring, before its first record and after its last.
TEST(test_empty_ring_has_nothing) {
  Ring ring(kSmallest);
  CHECK(IsEmpty(ring));
  CHECK_EQ(ring.used(), size_t{0});
  CHECK(Push(ring, 64, 1));
  CHECK_EQ(ring.used(), size_t{64});
  Pop(ring, 64, 1);
  CHECK(IsEmpty(ring));
  CHECK_EQ(ring.used(), size_t{0});
}

// What is reserved and not published cannot be seen.
TEST(test_reserved_record_is_invisible_until_published) {
  Ring ring(kSmallest);
  std::byte *room = ring.try_reserve(64);
  CHECK(room != nullptr);
  Fill(room, 64, 7);
  CHECK(IsEmpty(ring));
  ring.publish();
  Pop(ring, 64, 7);
}

// Records of exactly a quarter of the capacity fill the ring with four, and each one popped makes room for one.
TEST(test_quarter_records_fill_the_ring) {
  Ring ring(kSmallest);
  const size_t quarter = kSmallest / 4;
  uint64_t pushed = 0;
  uint64_t popped = 0;
  while (pushed < 4) CHECK(Push(ring, quarter, pushed++));
  for (int i = 0; i < 100; ++i) {
    CHECK_EQ(ring.used(), kSmallest);
    CHECK(ring.try_reserve(quarter) == nullptr);
    CHECK(ring.try_reserve(8) == nullptr);
    Pop(ring, quarter, popped++);
    CHECK(Push(ring, quarter, pushed++));
  }
  while (popped < pushed) Pop(ring, quarter, popped++);
  CHECK(IsEmpty(ring));
}

// Every byte of the ring can be used: 8-byte records fill it to the last.
TEST(test_smallest_records_fill_the_ring) {
  Ring ring(kSmallest);
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < kSmallest / 8; ++i) CHECK(Push(ring, 8, i));
    CHECK(ring.try_reserve(8) == nullptr);
    for (uint64_t i = 0; i < kSmallest / 8; ++i) Pop(ring, 8, i);
  }
}

// At every offset, a record that would cross the end moves to the start, padding before it, and the neighbours stay
// whole.
TEST(test_record_wraps_at_every_offset) {
  for (size_t offset = 8; offset <= kSmallest; offset += 8) {
    for (size_t size : {size_t{8}, size_t{16}, size_t{56}, size_t{64}, size_t{520}, kSmallest / 4 - 8, kSmallest / 4}) {
      Ring ring(kSmallest);
      for (size_t at = 0; at < offset;) {
        const size_t step = std::min(offset - at, kSmallest / 4);
        CHECK(Push(ring, step, at));
        at += step;
        // The last one before `offset` stays, so that the wrapped record has a neighbour behind it.
        if (at < offset) Pop(ring, step, at - step);
      }
      const size_t last = (offset - 1) % (kSmallest / 4) + 1;
      CHECK(Push(ring, size, 1));
      CHECK(Push(ring, size, 2));
      Pop(ring, last, offset - last);
      Pop(ring, size, 1);
      Pop(ring, size, 2);
      CHECK(IsEmpty(ring));
      CHECK_EQ(ring.used(), size_t{0});
    }
  }
}

// A refusal changes nothing: neither when there is no room at all nor when only the padding would fit.
TEST(test_full_ring_refuses_and_stays_whole) {
  Ring ring(kSmallest);
  CHECK(Push(ring, 1000, 0));
  CHECK(Push(ring, 1000, 1));
  CHECK(Push(ring, 1000, 2));
  CHECK(Push(ring, 1000, 3)); // 96 bytes to the end
  CHECK(ring.try_reserve(104) == nullptr);
  Pop(ring, 1000, 0);
  CHECK(ring.try_reserve(1008) == nullptr); // would need 96 of padding and 1008
  CHECK(Push(ring, 1000, 4));               // 96 of padding and 1000
  CHECK(ring.try_reserve(8) == nullptr);
  for (uint64_t i = 1; i <= 4; ++i) Pop(ring, 1000, i);
  CHECK(IsEmpty(ring));
}

// What was there at the call is visited oldest first, and what the visitor takes is gone.
TEST(test_take_visits_what_is_there_oldest_first) {
  Ring ring(kSmallest);
  for (uint64_t i = 0; i < 10; ++i) CHECK(Push(ring, 64 + 8 * i, i));
  uint64_t next = 0;
  CHECK(ring.take(ring.end(), [&](const std::byte *record) {
    CheckFilled(record, 64 + 8 * next, next);
    if (next < 5) CHECK(Push(ring, 64, 100 + next)); // comes after the call, so it is not visited
    ++next;
    return true;
  }));
  CHECK_EQ(next, uint64_t{10});
  for (uint64_t i = 0; i < 5; ++i) Pop(ring, 64, 100 + i);
  CHECK_EQ(ring.used(), size_t{0});
  CHECK(!ring.take(ring.end(), [](const std::byte *) { return true; }));
}

// A record taken from the middle is not seen again; its room comes back when everything before it has left.
TEST(test_take_may_leave_the_oldest) {
  Ring ring(kSmallest);
  for (uint64_t i = 0; i < 4; ++i) CHECK(Push(ring, 1024, i));
  uint64_t at = 0;
  CHECK(ring.take(ring.end(), [&](const std::byte *) { return at++ != 0; }));
  CHECK_EQ(ring.used(), kSmallest);
  CHECK(ring.try_reserve(8) == nullptr);
  Pop(ring, 1024, 0);
  CHECK(IsEmpty(ring));
  CHECK_EQ(ring.used(), size_t{0});
  CHECK(Push(ring, 1024, 9));
  Pop(ring, 1024, 9);
}

// Any mixture of sizes, pushes, pops and takes gives what a queue gives, and refuses only when the ring may be full.
TEST(test_ring_equals_a_queue) {
  for (uint64_t seed = 1; seed <= check::Times(100); ++seed) {
    check::seed = seed;
    Random random(seed);
    Ring ring(kSmallest << random.below(2));
    std::deque<std::pair<size_t, uint64_t>> queue;
    uint64_t number = 0;
    const uint64_t eagerness = 2 + random.below(4);
    for (int step = 0; step < 1000; ++step) {
      if (!random.one_in(eagerness)) {
        const size_t size = 8 * (1 + random.below(random.one_in(3) ? ring.capacity() / 32 : 16));
        if (Push(ring, size, number))
          queue.emplace_back(size, number++);
        else
          CHECK(ring.used() + 2 * size > ring.capacity());
      } else if (random.one_in(8)) {
        std::deque<std::pair<size_t, uint64_t>> left;
        auto expected = queue.begin();
        ring.take(ring.end(), [&](const std::byte *record) {
          CHECK(expected != queue.end());
          CheckFilled(record, expected->first, expected->second);
          const bool taken = !random.one_in(3);
          if (!taken) left.push_back(*expected);
          ++expected;
          return taken;
        });
        CHECK(expected == queue.end());
        queue = std::move(left);
      } else if (queue.empty()) {
        CHECK(IsEmpty(ring));
        CHECK_EQ(ring.used(), size_t{0});
      } else {
        Pop(ring, queue.front().first, queue.front().second);
        queue.pop_front();
      }
    }
    for (auto &[size, n] : queue) Pop(ring, size, n);
    CHECK(IsEmpty(ring));
    CHECK_EQ(ring.used(), size_t{0});
  }
}

// Two threads: every record arrives once, in order, with the bytes it was published with.
void CheckTwoThreads(uint64_t seed, size_t capacity, uint64_t records) {
  struct Head {
    uint32_t size;
    Kind kind;
    uint16_t unused;
    uint64_t counter;
    uint64_t checksum;
  };
  Ring ring(capacity);
  std::thread producer([&] {
    check::seed = seed;
    Random random(seed);
    for (uint64_t counter = 0; counter < records; ++counter) {
      const size_t words = random.below(random.one_in(16) ? capacity / 32 - 2 : 24);
      Head head{static_cast<uint32_t>(sizeof(Head) + 8 * words), Kind::kOrdered, 0, counter, 0};
      std::byte *room;
      while ((room = ring.try_reserve(head.size)) == nullptr) std::this_thread::yield();
      for (size_t i = 0; i < words; ++i) {
        const uint64_t word = random.next();
        std::memcpy(room + sizeof head + 8 * i, &word, sizeof word);
        head.checksum = head.checksum * 31 + word;
      }
      std::memcpy(room, &head, sizeof head);
      ring.publish();
    }
  });
  uint64_t counter = 0;
  const auto check_next = [&](const std::byte *record) {
    Head head;
    std::memcpy(&head, record, sizeof head);
    CHECK_EQ(head.counter, counter);
    uint64_t checksum = 0;
    for (size_t at = sizeof head; at < head.size; at += 8) {
      uint64_t word;
      std::memcpy(&word, record + at, sizeof word);
      checksum = checksum * 31 + word;
    }
    CHECK_EQ(head.checksum, checksum);
    ++counter;
    return true;
  };
  while (counter < records) {
    if (!ring.take(ring.end(), check_next)) std::this_thread::yield();
  }
  producer.join();
  CHECK(IsEmpty(ring));
  CHECK_EQ(ring.used(), size_t{0});
}

// 200,000 records pass from one thread to another in order and whole.
TEST(test_two_threads_pass_records_in_order) { CheckTwoThreads(1, kSmallest, 50000); }

// The same for many short runs, where starting and ending matter more.
TEST(test_two_threads_many_seeds) {
  for (uint64_t seed = 2; seed < 40; ++seed) {
    check::seed = seed;
    CheckTwoThreads(seed, kSmallest << (seed % 3), 3000);
  }
}

} // namespace
} // namespace effects::ring_test
