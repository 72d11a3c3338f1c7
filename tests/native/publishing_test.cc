// Publisher and Drain together: threads publish, one thread drains, nothing is lost or reordered.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.h"

namespace effects::publishing_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// `threads` threads, each of which dispatches programs with random effects and publishes them itself.
// Python sees the records, or native code formats them, or one half each.
void PublishAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest, bool text,
                     bool python) {
  World world(when_full);
  const uint64_t sink = text ? world.show_text() : 0;
  std::atomic<uint64_t> attempts{0};
  std::vector<std::thread> producers;
  for (uint32_t thread = 1; thread <= threads; ++thread)
    producers.emplace_back([&, thread] {
      check::seed = seed;
      Random random(seed * 100 + thread);
      uint64_t mine = 0;
      for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        const bool formatted = text && (!python || random.one_in(2));
        CHECK_EQ(world.drain.open(thread, formatted ? sink : 0), epoch);
        PlayedProgram program(world.publisher, thread, epoch);
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

void PublishAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest) {
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/true, /*python=*/false);
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/false, /*python=*/true);
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/true, /*python=*/true);
}

// Under `wait`, many threads with tiny rings lose nothing and every thread's order is kept.
TEST(test_wait_loses_nothing) { PublishAndDrain(WhenFull::kWait, 1, 4, 60, 900); }

// Records too large for the ring travel beside it, in the same order.
TEST(test_wait_with_large_records_loses_nothing) { PublishAndDrain(WhenFull::kWait, 2, 3, 25, 30000); }

// Under `drop`, what is released and what is counted as dropped is all there was, and every epoch ends.
TEST(test_drop_counts_what_it_drops) {
  PublishAndDrain(WhenFull::kDrop, 3, 4, 150, 900);
  PublishAndDrain(WhenFull::kDrop, 4, 3, 60, 30000);
}

// Many short programs, each dispatched while the drain is busy: a drop or a close that the drain sees before it has
// read of the program's dispatch is not forgotten.
TEST(test_dropping_short_programs_end) {
  World world(WhenFull::kDrop);
  constexpr uint32_t kEpochs = 1500;
  std::vector<std::thread> producers;
  for (uint32_t thread = 1; thread <= 2; ++thread)
    producers.emplace_back([&, thread] {
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        world.drain.open(thread, 0);
        PlayedProgram program(world.publisher, thread, epoch);
        for (int i = 0; i < 6; ++i) program.record(700);
        program.close();
      }
    });
  world.until_finished(2 * kEpochs);
  for (std::thread &producer : producers) producer.join();
  world.check_nothing_lost(2 * kEpochs * 6);
}

// One program whose effects come from several of the runtime's threads, which run ahead of each other over many epochs:
// the order is restored, and unordered records are not lost behind the close that another thread published.
TEST(test_one_program_on_several_threads) {
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
TEST(test_ended_threads_records_are_drained) {
  World world;
  for (uint32_t epoch = 0; epoch < 10; ++epoch) {
    world.drain.open(1, 0);
    InThread([&] {
      PlayedProgram program(world.publisher, 1, epoch);
      for (int i = 0; i < 5; ++i) program.record(200);
      program.record(1000); // beside the ring; all ten are admitted without a drain
      program.close();
    });
  }
  world.until_finished(10);
  world.check_nothing_lost(60);
}

// The same while the drain runs and threads come and go.
TEST(test_short_lived_threads_lose_nothing) {
  World world;
  constexpr uint32_t kEpochs = 400;
  std::thread dispatcher([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      InThread([&] {
        PlayedProgram program(world.publisher, 1, epoch);
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
TEST(test_stop_releases_a_waiting_producer) {
  for (size_t size : {size_t{100}, size_t{5000}}) {
    World world;
    world.drain.open(1, 0);
    constexpr uint64_t kRecords = 100;
    std::thread producer([&] {
      PlayedProgram program(world.publisher, 1, 0);
      for (uint64_t i = 0; i < kRecords; ++i) program.record(size);
      program.close();
    });
    while (world.publisher.stats.waited.load() == 0) std::this_thread::yield();
    world.wake_up.stop();
    producer.join();
    CHECK(world.publisher.stats.dropped.load() > 0);
    while (!world.play().stopped || world.finished == 0) {
    }
    world.gaps_allowed = true;
    world.check_nothing_lost(kRecords);
  }
}

// A close is never lost, even one with so many domains that it is too large for the ring, and the ring is full.
TEST(test_large_close_is_never_dropped) {
  for (WhenFull when_full : {WhenFull::kWait, WhenFull::kDrop}) {
    World world(when_full);
    constexpr uint32_t kEpochs = 5;
    std::thread producer([&] {
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        world.drain.open(1, 0);
        PlayedProgram program(world.publisher, 1, epoch);
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

// What somebody waits for is never dropped, small or large, ordered or not, whatever else the full ring drops.
TEST(test_awaited_record_is_never_dropped) {
  for (size_t size : {size_t{100}, size_t{5000}})
    for (bool others_too : {false, true}) {
      World world(WhenFull::kDrop);
      world.wake_up.begin_barrier(false); // the drain does not pace itself
      world.drain.open(1, 0);
      uint64_t dropped = 0;
      constexpr uint32_t kRecords = 100;
      // Nothing is drained before all is published.
      InThread([&] {
        Random random(size + others_too);
        uint32_t ordered = 0;
        for (uint32_t i = 0; i < kRecords; ++i) {
          const Kind kind = random.one_in(3) ? Kind::kUnordered : Kind::kOrdered;
          const Token token = MakeToken(1, 0, 0, kind == Kind::kOrdered ? ordered++ : 0);
          CHECK(Publish(world.publisher, kind, token, random.one_in(2) ? size : 8, kCallback, /*reply=*/i + 1));
          if (others_too)
            for (size_t other : {size_t{50}, size})
              Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, ordered++), other);
        }
        Close(world.publisher, 1, 0, {{0, ordered}});
      });
      dropped = world.publisher.stats.dropped.load();
      CHECK_EQ(dropped > 0, others_too);
      world.until_finished(1);
      CHECK_EQ(world.awaited_seen, uint64_t{kRecords});
      CHECK_EQ(world.publisher.stats.dropped.load(), dropped);
      world.check_nothing_lost(kRecords + (others_too ? 2 * kRecords : 0));
    }
}

// The same for plain records, and for a producer that waits for room when nothing drains any more.
TEST(test_awaited_record_outlives_the_end) {
  for (size_t size : {size_t{100}, size_t{5000}}) {
    World world;
    world.wake_up.begin_barrier(false); // the drain does not pace itself
    constexpr uint32_t kRecords = 80;
    std::thread producer([&] {
      for (uint32_t i = 0; i < kRecords; ++i) CHECK(world.plain(i % 2 == 0, size, kCallback, /*reply=*/i + 1));
    });
    while (world.publisher.stats.waited.load() == 0) std::this_thread::yield();
    world.wake_up.stop();
    producer.join();
    while (world.plain_seen < kRecords) {
      const Batch batch = world.step();
      CHECK(batch.stopped);
      if (batch.run != Batch::kNoRun) world.resume(batch);
    }
    CHECK_EQ(world.publisher.stats.dropped.load(), uint64_t{0});
    CHECK_EQ(world.awaited_seen, uint64_t{kRecords});
  }
}

// A record for which there is no memory is an error of who publishes it, and those behind it do not wait for it.
TEST(test_record_without_memory_holds_up_no_other) {
  World world;
  CHECK(world.plain(/*ordered=*/true, 8));
  const Span more_than_there_is{&world, size_t{1} << 50};
  const uint32_t epoch = world.drain.open(1, 0);
  bool failed = false;
  try {
    world.publisher.publish(Kind::kOrdered, 1, MakeToken(1, 0, epoch, 0), 0, &more_than_there_is, 1);
  } catch (const std::bad_alloc &) {
    failed = true;
  }
  CHECK(failed);
  Close(world.publisher, 1, epoch, {{0, 1}});
  CHECK(world.plain(/*ordered=*/true, 8));
  for (int tries = 0; world.plain_seen < 2 && tries < 1000; ++tries) world.play();
  CHECK_EQ(world.plain_seen, uint64_t{2});
}

// Two publishers of a process are independent: what a thread publishes to one comes out of that one alone, however it
// goes from one to the other, and also when one of them is gone and another may lie at its address.
TEST(test_two_publishers_are_independent) {
  constexpr uint32_t kRecords = 20;
  World first;
  std::atomic<int> stage{0};
  const auto await = [&](int awaited) {
    while (stage < awaited) std::this_thread::yield();
  };
  const auto publish = [](World &world, uint32_t index) {
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, index), 8));
  };
  auto second = std::make_unique<World>(), third = std::unique_ptr<World>();
  for (World *world : {&first, second.get()}) world->drain.open(1, 0);
  std::thread producer([&] {
    for (uint32_t index = 0; index < kRecords; ++index)
      for (World *world : {&first, second.get()}) publish(*world, index);
    for (World *world : {&first, second.get()}) Close(world->publisher, 1, 0, {{0, kRecords}});
    stage = 1;
    await(2);
    publish(*third, 0);
    Close(third->publisher, 1, 0, {{0, 1}});
  });
  await(1);
  for (World *world : {&first, second.get()}) {
    world->until_finished(1);
    CHECK_EQ(world->ordered_seen, uint64_t{kRecords});
    CHECK_EQ(world->publisher.count_published().records, uint64_t{kRecords});
  }
  second.reset();
  third = std::make_unique<World>();
  third->drain.open(1, 0);
  stage = 2;
  producer.join();
  third->until_finished(1);
  CHECK_EQ(third->ordered_seen, uint64_t{1});
  CHECK_EQ(first.ordered_seen, uint64_t{kRecords});
}

// Records that all devices of a program publish are shown once, and are of no device, whichever was heard first.
TEST(test_replicated_records_are_of_no_device) {
  World world;
  world.drain.open(1, 0);
  InThread([&] {
    for (uint32_t index = 0; index < 3; ++index)
      for (int copies = 0; copies < 2; ++copies)
        Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, index), 8, kReplicated);
    Close(world.publisher, 1, 0, {{0, 3}});
  });
  world.until_finished(1); // which looks at their device
  CHECK_EQ(world.ordered_seen, uint64_t{3});
}

// A program is known to have closed when all its devices have; one that failed on the way is forgotten.
TEST(test_program_has_closed_when_all_devices_have) {
  ClosedPrograms closed;
  const Token first = MakeToken(7, 0, 3, 0), second = MakeToken(7, 0, 4, 0), third = MakeToken(7, 0, 5, 0);
  closed.note(first, 3);
  closed.note(second, 0);
  closed.note(first, 3);
  CHECK(!closed.contains(7, 3) && closed.contains(7, 4));
  closed.note(first, 3);
  CHECK(closed.contains(7, 3) && closed.contains(7, 4) && !closed.contains(8, 3));

  closed.note(third, 2);
  closed.forget(7, 5);
  closed.note(third, 2);
  CHECK(!closed.contains(7, 5));
}

// A thread that has ended and one that has its number later have no epoch in common: what devices publish late of the
// first is none of the second's.
TEST(test_number_that_is_used_again) {
  World world;
  for (int i = 0; i < 3; ++i) CHECK_EQ(world.drain.open(1, 0), static_cast<uint32_t>(i));
  InThread([&] {
    for (uint32_t epoch = 0; epoch < 3; ++epoch) PlayedProgram(world.publisher, 1, epoch).close();
  });
  world.until_finished(3);
  world.drain.forget(1);
  world.drain.number_anew(1);
  const uint32_t epoch = world.drain.open(1, 0);
  InThread([&] {
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), 8));
    PlayedProgram program(world.publisher, 1, epoch);
    program.record(8);
    program.close();
  });
  world.until_finished(4);
  CHECK_EQ(world.ordered_seen, uint64_t{1});
  CHECK_EQ(world.publisher.stats.discarded.load(), uint64_t{1});
}

} // namespace
} // namespace effects::publishing_test
