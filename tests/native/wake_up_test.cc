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

namespace effects::wake_up_test {
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
      PlayedProgram program(world.publisher, 1, epoch);
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

// So does a plain effect, whose epoch is opened when it is published.
TEST(test_plain_effect_wakes_the_drain) {
  World world;
  constexpr uint64_t kEffects = 100;
  std::mutex mutex;
  std::condition_variable left;
  uint64_t effects_left = 0;
  std::thread host([&] {
    for (uint64_t i = 0; i < kEffects; ++i) {
      CHECK(world.plain(i % 3 != 0, 8));
      std::unique_lock lock(mutex);
      left.wait(lock, [&] { return effects_left > i; });
    }
  });
  while (world.plain_seen < kEffects) {
    world.play(std::chrono::hours(1));
    {
      std::lock_guard lock(mutex);
      effects_left = world.plain_seen;
    }
    left.notify_one();
  }
  host.join();
}

// A producer that finds its ring full wakes the drain, though no program is open: here an ended program's late records.
TEST(test_full_ring_wakes_the_drain) {
  World world;
  world.drain.open(1, 0);
  InThread([&] { PlayedProgram(world.publisher, 1, 0).close(); });
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
  InThread([&] { PlayedProgram(world.publisher, 1, 0).close(); });
  world.until_finished(1);
  const auto &discarded = world.publisher.stats.discarded;
  std::thread late([&] {
    constexpr size_t kRecord = 128;
    for (uint64_t i = 1; i <= 50 * kSmallest / kRecord; ++i) {
      Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), kRecord - sizeof(RecordHeader) - sizeof(Preface));
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

// A resumption wakes the drain, and what waited for it leaves.
TEST(test_resume_wakes_the_drain) {
  for (int i = 0; i < 100; ++i) {
    World world;
    for (uint32_t reply : {1u, 2u}) InThread([&] { CHECK(world.plain(true, 8, kCallback, reply)); });
    const Batch batch = world.step();
    CHECK_SEEN(Items(batch), {"plain.0:c0"});
    std::thread host([&] { world.resume(batch); });
    Batch next = world.step(std::chrono::hours(1));
    while (next.items.empty()) next = world.step(std::chrono::hours(1));
    CHECK_SEEN(Items(next), {"plain.1:c0"});
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
} // namespace effects::wake_up_test
