// The drain wakes whenever there is something to do, however deep it sleeps.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.h"

namespace effects {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// stop() wakes the drain, however deep it sleeps.
TEST(test_stop_wakes_the_drain) {
  for (int i = 0; i < 200; ++i) {
    World world;
    std::thread host([&] { world.wake_up.stop(); });
    while (!world.step(std::chrono::hours(1)).stopped) {
    }
    host.join();
  }
}

// A program's dispatch wakes the drain, in whatever moment it is about to fall asleep.
TEST(test_open_wakes_the_drain) {
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
      world.wake_up.wake_now(); // as a barrier has it
      std::unique_lock lock(mutex);
      ended.wait(lock, [&] { return epochs_ended > epoch; });
    }
  });
  while (world.finished < kEpochs) {
    world.play(std::chrono::hours(1));
    {
      std::lock_guard lock(mutex);
      epochs_ended = world.finished;
    }
    ended.notify_one();
  }
  host.join();
}

// So does an untracked record, which Python sees or native code formats.
TEST(test_untracked_record_wakes_the_drain) {
  for (bool text : {true, false}) {
    World world;
    if (text) world.show_text();
    constexpr uint64_t kRecords = 100;
    std::mutex mutex;
    std::condition_variable left;
    uint64_t records_left = 0;
    std::thread host([&] {
      for (uint64_t i = 0; i < kRecords; ++i) {
        CHECK(world.untracked(i % 3 != 0, 8));
        std::unique_lock lock(mutex);
        left.wait(lock, [&] { return records_left > i; });
      }
    });
    while (world.untracked_seen < kRecords) {
      const Batch batch = world.play(std::chrono::hours(1));
      CHECK_EQ(batch.untracked_released + batch.untracked_in_run, world.untracked_seen);
      if (text) CHECK_EQ(batch.untracked_released, world.untracked_seen);
      {
        std::lock_guard lock(mutex);
        records_left = world.untracked_seen;
      }
      left.notify_one();
    }
    host.join();
  }
}

// A producer that finds its ring full wakes the drain, though no program is open: here an ended program's late records.
TEST(test_full_ring_wakes_the_drain) {
  World world;
  world.drain.open(1, 0);
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.until_finished(1);
  std::atomic<bool> done{false};
  std::thread late([&] {
    for (int i = 0; i < 300; ++i) Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), 100);
    done = true;
    world.wake_up.stop();
  });
  while (!world.step(std::chrono::hours(1)).stopped) {
  }
  CHECK(done);
  late.join();
}

// So does one that has written half of its ring, long before it has to wait.
TEST(test_half_full_ring_wakes_the_drain) {
  World world;
  world.drain.open(1, 0);
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.until_finished(1);
  const auto &discarded = world.publisher.stats.discarded;
  std::thread late([&] {
    constexpr size_t kRecord = 128;
    for (uint64_t i = 1; i <= 50 * kSmallest / kRecord; ++i) {
      Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0),
              kRecord - sizeof(RecordHeader) - sizeof(Preface));
      if (i % (kSmallest / 2 / kRecord) != 0) continue;
      while (discarded.load() < i) std::this_thread::yield();
    }
    world.wake_up.stop();
  });
  while (!world.step(std::chrono::hours(1)).stopped) {
  }
  late.join();
  CHECK_EQ(world.publisher.stats.waited.load(), uint64_t{0});
}

// A resumption is progress: it wakes the drain, and who waits for untracked records hears of it by a batch of its own.
TEST(test_resume_wakes_the_drain) {
  for (int i = 0; i < 100; ++i) {
    World world;
    const bool ordered = i % 2 == 0; // and holds something, or not
    InThread([&] { CHECK(world.untracked(ordered, 8, static_cast<uint16_t>(i % 4 < 2 ? kCallback : 0))); });
    const Batch batch = world.step();
    CHECK_EQ(batch.untracked_released, uint64_t{0});
    std::thread host([&] { world.resume(batch); });
    CHECK_EQ(world.step(std::chrono::hours(1)).untracked_released, uint64_t{1});
    host.join();
  }
}

// The release of a site wakes the drain.
TEST(test_release_site_wakes_the_drain) {
  World world;
  for (uint64_t i = 0; i < 100; ++i) {
    world.sites.retain(i);
    std::thread host([&] { world.drain.release_site(i); });
    CHECK((world.step(std::chrono::hours(1)).forgotten == std::vector<uint64_t>{i}));
    host.join();
  }
}

} // namespace
} // namespace effects
