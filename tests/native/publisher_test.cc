// Publisher and Drain together: threads publish, one thread drains, nothing is lost, reordered or waited for in vain.
//
// A thread's ring belongs to the first Publisher it publishes to, and every test has a Publisher of its own: only
// threads that a test starts publish, the main thread is always the drain's.
#include "../../dispatch/native/publisher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../dispatch/native/drain.h"
#include "check.h"

namespace effects {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

constexpr size_t kSmallest = 4096;
constexpr milliseconds kPatience{50};

// What a payload holds follows from its record's token.
std::string Payload(const Token &token, size_t size) {
  Random random(uint64_t{token.stream} << 40 ^ uint64_t{token.epoch} << 20 ^ token.index);
  std::string bytes;
  while (bytes.size() < size) bytes += static_cast<char>(random.next());
  return bytes;
}

bool Publish(Publisher &publisher, Kind kind, const Token &token, size_t size) {
  const std::string bytes = Payload(token, size);
  const uint64_t length = size;
  const Span spans[] = {{&length, sizeof length}, {bytes.data(), bytes.size()}};
  return publisher.publish(kind, /*site=*/7, token, /*device=*/0, spans, 2);
}

void Close(Publisher &publisher, uint32_t thread, uint32_t epoch,
           const std::vector<std::pair<uint32_t, uint32_t>> &finals) {
  std::vector<Token> tokens;
  for (auto &[domain, index] : finals) tokens.push_back(MakeToken(thread, domain, epoch, index));
  const Span span{tokens.data(), tokens.size() * sizeof(Token)};
  CHECK(publisher.publish(Kind::kClose, 0, tokens.at(0), 0, &span, 1));
}

// A program on its device: publishes from one thread, counts its domains.
class Program {
public:
  Program(Publisher &publisher, uint32_t thread, uint32_t epoch)
      : publisher_(publisher), thread_(thread), epoch_(epoch) {}
  void record(size_t size, uint32_t domain = 0) {
    Publish(publisher_, Kind::kOrdered, MakeToken(thread_, domain, epoch_, next_[domain]++), size);
  }
  void unordered(size_t size) { Publish(publisher_, Kind::kUnordered, MakeToken(thread_, 0, epoch_, 0), size); }
  void close() {
    next_[0];
    Close(publisher_, thread_, epoch_, {next_.begin(), next_.end()});
  }

private:
  Publisher &publisher_;
  uint32_t thread_;
  uint32_t epoch_;
  std::map<uint32_t, uint32_t> next_;
};

// A Publisher, a Drain, and what left them, checked as it leaves.
class World {
public:
  explicit World(WhenFull when_full = WhenFull::kWait, size_t ring_bytes = kSmallest) {
    publisher.when_full = when_full;
    publisher.ring_bytes = ring_bytes;
  }

  // Publishes as handlers.cc does.
  bool plain(bool ordered, size_t size) {
    Token place{kPlainThread << kDomainBits,
                static_cast<uint32_t>(publisher.dispatches.load(std::memory_order_relaxed)), 0, 0};
    if (ordered) place.index = publisher.plain_index.fetch_add(1, std::memory_order_relaxed);
    if (!Publish(publisher, ordered ? Kind::kOrdered : Kind::kUnordered, place, size)) return false;
    drain.plain_published();
    return true;
  }

  // Takes one batch and checks it: payloads are whole, every thread's records come by epoch, domain and index, nothing
  // follows the end of its epoch, and ends come in order.
  Batch step(milliseconds patience = kPatience) {
    Batch batch = drain.next_batch(patience);
    for (const Item &item : batch.items) {
      CHECK(!item.is_text);
      const Token &token = item.header.token;
      uint64_t size;
      std::memcpy(&size, item.data.data(), sizeof size);
      CHECK_EQ(item.data.size(), 8 + RoundUp8(size));
      CHECK(item.data.compare(8, size, Payload(token, size)) == 0);
      const uint32_t thread = ThreadOf(token);
      CHECK_EQ(item.info.thread, thread);
      if (thread == kPlainThread) {
        ++plain_seen;
        continue;
      }
      Seen &seen = seen_of(thread);
      CHECK(token.epoch >= seen.ended);
      if (item.header.kind == Kind::kUnordered) {
        ++unordered_seen;
        continue;
      }
      CHECK(token.epoch >= seen.epoch);
      if (token.epoch != seen.epoch) seen.next.clear();
      seen.epoch = token.epoch;
      uint32_t &next = seen.next[token.stream];
      if (publisher.when_full.load() == WhenFull::kWait && !gaps_allowed)
        CHECK_EQ(token.index, next);
      else
        CHECK(token.index >= next);
      next = token.index + 1;
      ++ordered_seen;
    }
    for (const Finished &one : batch.finished) {
      Seen &seen = seen_of(one.thread);
      CHECK_EQ(one.epoch, seen.ended);
      ++seen.ended;
      ++finished;
    }
    return batch;
  }
  void until_finished(size_t epochs) {
    while (finished < epochs) step();
    CHECK_EQ(finished, epochs);
  }
  void check_nothing_lost(uint64_t attempts) {
    CHECK_EQ(publisher.stats.released.load() + publisher.stats.dropped.load(), attempts);
    CHECK_EQ(ordered_seen + unordered_seen + plain_seen, publisher.stats.released.load());
  }

  Publisher publisher;
  Drain drain{publisher};
  bool gaps_allowed = false; // programs fail
  size_t finished = 0;
  uint64_t ordered_seen = 0;
  uint64_t unordered_seen = 0;
  uint64_t plain_seen = 0;

private:
  struct Seen {
    uint32_t epoch = 0;                // of the last ordered record
    uint32_t ended = 0;                // how many epochs have
    std::map<uint32_t, uint32_t> next; // by stream
  };
  Seen &seen_of(uint32_t thread) {
    if (threads_.size() <= thread) threads_.resize(thread + 1);
    return threads_[thread];
  }
  std::vector<Seen> threads_;
};

// Runs `body` in a thread of its own, with a ring of its own, to its end.
template <typename Body>
void InThread(Body &&body) {
  std::thread(body).join();
}

// `threads` threads, each of which dispatches programs with random effects and publishes them itself.
void PublishAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest) {
  World world(when_full);
  std::atomic<uint64_t> attempts{0};
  std::vector<std::thread> producers;
  for (uint32_t thread = 1; thread <= threads; ++thread)
    producers.emplace_back([&, thread] {
      check::seed = seed;
      Random random(seed * 100 + thread);
      uint64_t mine = 0;
      for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        CHECK_EQ(world.drain.open(thread, 0), epoch);
        Program program(world.publisher, thread, epoch);
        for (uint64_t left = random.below(80); left > 0; --left) {
          const size_t size = random.one_in(20) ? random.below(largest) : random.below(100);
          if (random.one_in(5))
            program.unordered(size);
          else
            program.record(size, static_cast<uint32_t>(random.below(3)));
          ++mine;
        }
        program.close();
      }
      attempts += mine;
    });
  world.until_finished(size_t{threads} * epochs);
  for (std::thread &producer : producers) producer.join();
  world.check_nothing_lost(attempts);
  if (when_full == WhenFull::kWait) CHECK_EQ(world.publisher.stats.dropped.load(), uint64_t{0});
}

// Under `wait`, many threads with tiny rings lose nothing and every thread's order is kept.
void test_wait_loses_nothing() { PublishAndDrain(WhenFull::kWait, 1, 4, 60, 900); }

// Records too large for the ring travel beside it, in the same order.
void test_wait_with_large_records_loses_nothing() { PublishAndDrain(WhenFull::kWait, 2, 3, 25, 30000); }

// Under `drop newest`, what is released and what is counted as dropped is all there was, and every epoch ends.
void test_drop_newest_counts_what_it_drops() {
  PublishAndDrain(WhenFull::kDropNewest, 3, 4, 150, 900);
  PublishAndDrain(WhenFull::kDropNewest, 4, 3, 60, 30000);
}

// The same under `drop oldest`.
void test_drop_oldest_counts_what_it_drops() {
  PublishAndDrain(WhenFull::kDropOldest, 5, 4, 150, 900);
  PublishAndDrain(WhenFull::kDropOldest, 6, 3, 60, 30000);
}

// Many short programs, each dispatched while the drain is busy: a drop or a close that the drain sees before it has
// read of the program's dispatch is not forgotten.
void test_dropping_short_programs_end() {
  for (WhenFull when_full : {WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    World world(when_full);
    constexpr uint32_t kEpochs = 1500;
    std::vector<std::thread> producers;
    for (uint32_t thread = 1; thread <= 2; ++thread)
      producers.emplace_back([&, thread] {
        for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
          world.drain.open(thread, 0);
          Program program(world.publisher, thread, epoch);
          for (int i = 0; i < 6; ++i) program.record(700);
          program.close();
        }
      });
    world.until_finished(2 * kEpochs);
    for (std::thread &producer : producers) producer.join();
    world.check_nothing_lost(2 * kEpochs * 6);
  }
}

// One program whose effects come from several of the runtime's threads, which run ahead of each other over many epochs:
// the order is restored, and unordered records are not lost behind the close that another thread published.
void test_one_program_on_several_threads() {
  World world;
  constexpr uint32_t kWorkers = 3;
  constexpr uint32_t kEpochs = 150;
  constexpr uint32_t kRecords = 20;
  for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) world.drain.open(1, 0);
  std::vector<std::atomic<uint32_t>> running(kEpochs);
  for (auto &one : running) one = kWorkers;
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back([&, worker] {
      Random random(worker);
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        for (uint32_t index = 0; index < kRecords; ++index) {
          Publish(world.publisher, Kind::kOrdered, MakeToken(1, worker, epoch, index), random.below(200));
          if (index % 4 == 0) Publish(world.publisher, Kind::kUnordered, MakeToken(1, 0, epoch, index), 8);
        }
        if (running[epoch].fetch_sub(1) == 1)
          Close(world.publisher, 1, epoch, {{0, kRecords}, {1, kRecords}, {2, kRecords}});
      }
    });
  world.until_finished(kEpochs);
  for (std::thread &worker : workers) worker.join();
  CHECK_EQ(world.ordered_seen, uint64_t{kEpochs} * kWorkers * kRecords);
  CHECK_EQ(world.unordered_seen, uint64_t{kEpochs} * kWorkers * kRecords / 4);
}

// What a thread published before it ended is drained although the thread is gone.
void test_ended_threads_records_are_drained() {
  World world;
  for (uint32_t epoch = 0; epoch < 10; ++epoch) {
    world.drain.open(1, 0);
    InThread([&] {
      Program program(world.publisher, 1, epoch);
      for (int i = 0; i < 5; ++i) program.record(200);
      program.record(1000); // beside the ring; all ten are admitted without a drain
      program.close();
    });
  }
  world.until_finished(10);
  world.check_nothing_lost(60);
}

// The same while the drain runs and threads come and go.
void test_short_lived_threads_lose_nothing() {
  World world;
  constexpr uint32_t kEpochs = 400;
  std::thread dispatcher([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      InThread([&] {
        Program program(world.publisher, 1, epoch);
        for (int i = 0; i < 3; ++i) program.record(100);
        program.unordered(100);
        program.close();
      });
    }
  });
  world.until_finished(kEpochs);
  dispatcher.join();
  world.check_nothing_lost(4 * kEpochs);
}

// When nothing drains any more, a producer that waits for room goes on and counts what it lost; so does one that waits
// with a large record.
void test_stop_releases_a_waiting_producer() {
  for (size_t size : {size_t{100}, size_t{5000}}) {
    World world;
    world.drain.open(1, 0);
    constexpr uint64_t kRecords = 100;
    std::thread producer([&] {
      Program program(world.publisher, 1, 0);
      for (uint64_t i = 0; i < kRecords; ++i) program.record(size);
      program.close();
    });
    while (world.publisher.stats.waited.load() == 0) std::this_thread::yield();
    world.drain.stop();
    producer.join();
    CHECK(world.publisher.stats.dropped.load() > 0);
    while (!world.step().stopped || world.finished == 0) {
    }
    world.gaps_allowed = true;
    world.check_nothing_lost(kRecords);
  }
}

// stop() wakes the drain, however deep it sleeps.
void test_stop_wakes_the_drain() {
  for (int i = 0; i < 200; ++i) {
    World world;
    std::thread host([&] { world.drain.stop(); });
    while (!world.step(std::chrono::hours(1)).stopped) {
    }
    host.join();
  }
}

// A program's dispatch wakes the drain, in whatever moment it is about to fall asleep.
void test_open_wakes_the_drain() {
  World world;
  constexpr uint32_t kEpochs = 600;
  std::mutex mutex;
  std::condition_variable ended;
  size_t epochs_ended = 0;
  std::thread host([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      Program program(world.publisher, 1, epoch);
      program.record(8);
      program.close();
      world.publisher.wake(); // as a barrier has it
      std::unique_lock lock(mutex);
      ended.wait(lock, [&] { return epochs_ended > epoch; });
    }
  });
  while (world.finished < kEpochs) {
    world.step(std::chrono::hours(1));
    {
      std::lock_guard lock(mutex);
      epochs_ended = world.finished;
    }
    ended.notify_one();
  }
  host.join();
}

// So does a plain record.
void test_plain_record_wakes_the_drain() {
  World world;
  constexpr uint64_t kRecords = 2000;
  std::mutex mutex;
  std::condition_variable left;
  uint64_t records_left = 0;
  std::thread host([&] {
    for (uint64_t i = 0; i < kRecords; ++i) {
      CHECK(world.plain(i % 3 != 0, 8));
      std::unique_lock lock(mutex);
      left.wait(lock, [&] { return records_left > i; });
    }
  });
  while (world.plain_seen < kRecords) {
    const Batch batch = world.step(std::chrono::hours(1));
    CHECK_EQ(batch.plain_released, world.plain_seen);
    {
      std::lock_guard lock(mutex);
      records_left = world.plain_seen;
    }
    left.notify_one();
  }
  host.join();
}

// A producer that finds its ring full wakes the drain, though no program is open: here an ended program's late records.
void test_full_ring_wakes_the_drain() {
  World world;
  world.drain.open(1, 0);
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.until_finished(1);
  std::atomic<bool> done{false};
  std::thread late([&] {
    for (int i = 0; i < 300; ++i) Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), 100);
    done = true;
    world.drain.stop();
  });
  while (!world.step(std::chrono::hours(1)).stopped) {
  }
  CHECK(done);
  late.join();
}

// A program that floods its ring while an earlier one, which needs the same thread, has published nothing: the limit of
// what is parked grows, and both end.
void test_later_program_floods_before_the_earlier() {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  constexpr uint64_t kFlood = 1500;
  std::thread device([&] {
    Program later(world.publisher, 1, 1);
    for (uint64_t i = 0; i < kFlood; ++i) later.record(16);
    later.close();
    Program earlier(world.publisher, 1, 0);
    for (int i = 0; i < 10; ++i) earlier.record(16);
    earlier.close();
  });
  world.until_finished(2);
  device.join();
  world.check_nothing_lost(kFlood + 10);
}

// The same while another thread's programs run without a pause: their progress is not that of the flooded thread.
void test_flood_beside_a_busy_thread() {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  std::atomic<bool> done{false};
  std::thread device([&] {
    Program later(world.publisher, 1, 1);
    for (int i = 0; i < 800; ++i) later.record(16);
    later.close();
    Program(world.publisher, 1, 0).close();
    done = true;
  });
  std::atomic<size_t> others{0};
  std::thread busy([&] {
    for (uint32_t epoch = 0; !done; ++epoch) {
      world.drain.open(2, 0);
      Program program(world.publisher, 2, epoch);
      program.record(8);
      program.close();
      ++others;
    }
  });
  while (!done) world.step();
  busy.join();
  world.until_finished(2 + others);
  device.join();
}

// A batch has a size, but an unordered record does not fall behind its program's end because another ring filled the
// batch, and a thread's flood does not keep the drain from the other rings.
void test_full_batch_loses_no_unordered_record() {
  World world(WhenFull::kWait, size_t{1} << 20);
  world.drain.open(1, 0);
  world.drain.open(2, 0);
  std::mutex mutex;
  std::condition_variable turn_changed;
  int turn = 0;
  // Three rings in a known order, all alive until the end: the close, the flood, the record behind them.
  const auto in_turn = [&](int mine, const std::function<void()> &body) {
    std::unique_lock lock(mutex);
    turn_changed.wait(lock, [&] { return turn == mine; });
    body();
    ++turn;
    turn_changed.notify_all();
  };
  std::thread third([&] { in_turn(2, [&] { Program(world.publisher, 1, 0).unordered(8); }); });
  std::thread second([&] {
    in_turn(1, [&] {
      Program flood(world.publisher, 2, 0);
      for (int i = 0; i < 8000; ++i) flood.unordered(8);
    });
  });
  std::thread first([&] {
    in_turn(0, [&] {
      CHECK(Publish(world.publisher, Kind::kUnordered, MakeToken(1, 0, 0, 0), 8));
      Close(world.publisher, 1, 0, {{0, 0}});
    });
  });
  first.join();
  second.join();
  third.join();
  world.until_finished(1);
  InThread([&] { Program(world.publisher, 2, 0).close(); });
  world.until_finished(2);
  CHECK_EQ(world.unordered_seen, uint64_t{8002});
}

// Records that must wait in their ring, because too much is parked, hold up nothing that stands behind them: neither a
// record without order nor what is left of a failed program.
void test_full_parking_loses_nothing_behind_it() {
  World world;
  for (int i = 0; i < 3; ++i) world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the small rings' size; the one below is larger than the limit
  world.publisher.ring_bytes = 16 * kSmallest;
  InThread([&] {
    Program flood(world.publisher, 1, 2);
    for (int i = 0; i < 600; ++i) flood.record(32);
    Program(world.publisher, 1, 0).unordered(8);
    for (uint32_t index = 1; index < 9; index += 2)
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 1, index), 8));
    flood.close();
  });
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.drain.fail(1, 1);
  world.gaps_allowed = true;
  world.until_finished(3);
  CHECK_EQ(world.unordered_seen, uint64_t{1});
  CHECK_EQ(world.ordered_seen, uint64_t{604});
}

// A program's failure ends its epoch at once, whatever it did not publish, while others run on.
void test_failed_programs_do_not_hold_up_others() {
  World world;
  world.gaps_allowed = true;
  constexpr uint32_t kEpochs = 300;
  uint64_t attempts = 0;
  std::thread producer([&] {
    Random random(1);
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      if (random.one_in(3)) {
        for (uint32_t index = 0; index < 10; ++index)
          if (random.one_in(2) && ++attempts)
            Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, epoch, index), 50);
        world.drain.fail(1, epoch);
      } else {
        Program program(world.publisher, 1, epoch);
        for (int i = 0; i < 10; ++i, ++attempts) program.record(50);
        program.close();
      }
    }
  });
  world.until_finished(kEpochs);
  producer.join();
  world.check_nothing_lost(attempts);
}

// A close is never lost, even one with so many domains that it is too large for the ring, and the ring is full.
void test_large_close_is_never_dropped() {
  for (WhenFull when_full : {WhenFull::kWait, WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    World world(when_full);
    constexpr uint32_t kEpochs = 20;
    std::thread producer([&] {
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        world.drain.open(1, 0);
        Program program(world.publisher, 1, epoch);
        for (uint32_t domain = 0; domain < 200; ++domain) program.record(64, domain);
        program.close();
      }
    });
    if (when_full != WhenFull::kWait) producer.join(); // nothing is drained before all is published
    world.until_finished(kEpochs);
    if (producer.joinable()) producer.join();
    world.check_nothing_lost(200 * kEpochs);
  }
}

// A plain record never leaves before the programs that were dispatched before it, though the drain may see it before it
// has read of them.
void test_plain_record_follows_earlier_programs() {
  World world;
  constexpr uint32_t kEpochs = 1500;
  std::atomic<uint32_t> settled{0};
  std::thread host([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      while (settled < epoch) std::this_thread::yield(); // no earlier program holds the plain record back
      world.drain.open(1, 0);
      CHECK(world.plain(/*ordered=*/true, 8));
      Program program(world.publisher, 1, epoch);
      program.record(8);
      program.close();
    }
  });
  // Keeps the drain scanning, so that it often passes its inbox just before a dispatch.
  std::thread waker([&] {
    while (settled < kEpochs) {
      world.publisher.wake();
      std::this_thread::yield();
    }
  });
  uint32_t programs = 0;
  uint32_t plain = 0;
  while (settled < kEpochs) {
    const Batch batch = world.step();
    for (const Item &item : batch.items) {
      if (item.info.thread == 1)
        ++programs;
      else
        CHECK(++plain <= programs); // the k-th plain record has k programs before it
    }
    settled = static_cast<uint32_t>(std::min<uint64_t>(world.finished, world.plain_seen));
  }
  host.join();
  waker.join();
}

// A plain record that was dropped as the oldest counts as gone, so that who waits for all plain records ends waiting.
void test_dropped_plain_records_are_not_waited_for() {
  for (bool ordered : {true, false}) {
    World world(WhenFull::kDropOldest);
    InThread([&] {
      for (int i = 0; i < 200; ++i) CHECK(world.plain(ordered, 100));
    });
    uint64_t released = 0;
    while (released < world.publisher.plain_published.load()) released = world.step().plain_released;
    CHECK_EQ(released, uint64_t{200});
    CHECK(world.publisher.stats.dropped.load() > 0);
    world.check_nothing_lost(200);
  }
}

// The drain does not fall into its deep sleep while a plain record is parked: if the one before it is dropped, nobody
// will tell.
void test_parked_plain_record_keeps_the_drain_awake() {
  World world(WhenFull::kDropNewest);
  const uint32_t missing = world.publisher.plain_index.fetch_add(1);
  InThread([&] { CHECK(world.plain(/*ordered=*/true, 8)); });
  CHECK_EQ(world.step(milliseconds(1)).items.size(), size_t{0}); // returns at all
  InThread([&] {
    world.drain.open(1, 0);
    Program filler(world.publisher, 1, 0);
    for (int i = 0; i < 100; ++i) filler.unordered(100);
    CHECK(!Publish(world.publisher, Kind::kOrdered, {kPlainThread << kDomainBits, 0, 0, missing}, 100));
    filler.close();
  });
  world.until_finished(1);
  while (world.plain_seen == 0) world.step();
  CHECK_EQ(world.plain_seen, uint64_t{1});
}

// Consecutive records with a plan and one destination become one text, in order.
void test_text_is_formatted_in_order() {
  World world;
  Plan plan(1);
  plan[0].literal = "x=";
  plan[0].has_field = true;
  plan[0].type = Scalar::kInt64;
  Plan newline(1);
  newline[0].literal = "\n";
  plan.push_back(newline[0]);
  world.drain.set_plan(7, plan);
  world.drain.open(1, /*sink=*/3);
  InThread([&] {
    for (uint32_t index : {1u, 0u, 2u}) {
      const int64_t x = -5 + int64_t{index};
      const Span span{&x, sizeof x};
      CHECK(world.publisher.publish(Kind::kOrdered, 7, MakeToken(1, 0, 0, index), 0, &span, 1));
    }
    Close(world.publisher, 1, 0, {{0, 3}});
  });
  std::string text;
  for (size_t finished = 0; finished == 0;) {
    const Batch batch = world.drain.next_batch(kPatience);
    for (const Item &item : batch.items) {
      CHECK(item.is_text);
      CHECK_EQ(item.info.sink, uint64_t{3});
      text += item.data;
    }
    finished += batch.finished.size();
  }
  CHECK(text == "x=-5\nx=-4\nx=-3\n");
}

} // namespace
} // namespace effects

int main() {
  using namespace effects;
  RUN(test_wait_loses_nothing);
  RUN(test_wait_with_large_records_loses_nothing);
  RUN(test_drop_newest_counts_what_it_drops);
  RUN(test_drop_oldest_counts_what_it_drops);
  RUN(test_dropping_short_programs_end);
  RUN(test_one_program_on_several_threads);
  RUN(test_ended_threads_records_are_drained);
  RUN(test_short_lived_threads_lose_nothing);
  RUN(test_stop_releases_a_waiting_producer);
  RUN(test_stop_wakes_the_drain);
  RUN(test_open_wakes_the_drain);
  RUN(test_plain_record_wakes_the_drain);
  RUN(test_full_ring_wakes_the_drain);
  RUN(test_later_program_floods_before_the_earlier);
  RUN(test_flood_beside_a_busy_thread);
  RUN(test_full_batch_loses_no_unordered_record);
  RUN(test_full_parking_loses_nothing_behind_it);
  RUN(test_failed_programs_do_not_hold_up_others);
  RUN(test_large_close_is_never_dropped);
  RUN(test_plain_record_follows_earlier_programs);
  RUN(test_dropped_plain_records_are_not_waited_for);
  RUN(test_parked_plain_record_keeps_the_drain_awake);
  RUN(test_text_is_formatted_in_order);
  return 0;
}
