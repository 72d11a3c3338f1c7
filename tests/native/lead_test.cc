// One thread leads the drain at a time, and while it is busy another may take the lead.
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

namespace effects::lead_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// The first that stands by leads; an offer that nobody took is taken back, and again; who has not offered, or does not
// lead, takes nothing back.
TEST(test_lead_is_taken_and_taken_back) {
  World world;
  CHECK(world.wake_up.stand_by());
  CHECK(!world.wake_up.reclaim());
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(world.wake_up.offer(), 0);
    InThread([&] { CHECK(!world.wake_up.reclaim()); });
    CHECK(world.wake_up.reclaim());
    CHECK(!world.wake_up.reclaim());
  }
  world.wake_up.leave();
  InThread([&] {
    CHECK(world.wake_up.stand_by());
    world.wake_up.leave();
  });
  CHECK(world.wake_up.stand_by());
}

// An offer is urgent by who says so, before it is made or after, and by no publication: not even by one of the
// offering thread's own for which somebody waits.
TEST(test_offer_is_urgent_on_request) {
  World world;
  std::thread([&] {
    world.drain.open(2, 0);
    CHECK(world.wake_up.stand_by());
    world.wake_up.offer();
    CHECK(world.plain(true, 8, kCallback, /*reply=*/1));
    InThread([&] { CHECK(Publish(world.publisher, Kind::kUnordered, MakeToken(2, 0, 0, 0), 8, kCallback, 2)); });
    world.wake_up.wake_now();
    world.wake_up.set_work_pending();
    CHECK(!world.wake_up.offer_is_urgent());
    CHECK(world.wake_up.reclaim());

    world.wake_up.offer();
    InThread([&] { world.wake_up.set_offer_urgent(); });
    CHECK(world.wake_up.offer_is_urgent());
    CHECK(world.wake_up.reclaim()); // nobody stood by
    CHECK(!world.wake_up.offer_is_urgent());

    world.wake_up.set_offer_urgent();
    world.wake_up.offer();
    CHECK(world.wake_up.offer_is_urgent());
    CHECK(world.wake_up.reclaim());

    world.wake_up.set_offer_urgent();
    world.step(); // looks
    world.wake_up.offer();
    CHECK(!world.wake_up.offer_is_urgent());
  }).join();
}

// An offer that is urgent is taken by whoever stands by: it leads then, takes the record for which somebody waits, and
// the thread that offered does not lead any more.
TEST(test_urgent_offer_is_taken) {
  for (int i = 0; i < 50; ++i) {
    World world;
    world.drain.open(1, 0);
    std::atomic<bool> led{false};
    std::atomic<bool> taken{false};
    CHECK(world.wake_up.stand_by());
    std::thread other([&] {
      CHECK(world.wake_up.stand_by());
      CHECK(led);
      Batch batch = world.step();
      while (batch.run == Batch::kNoRun) batch = world.step();
      CHECK_SEEN(Items(batch), {"1.0:c0"});
      world.resume(batch);
      taken = true;
      world.wake_up.stop();
      world.wake_up.leave();
    });
    led = true;
    world.wake_up.offer();
    InThread([&] {
      PlayedProgram(world.publisher, 1, 0).callback(8, /*reply=*/1);
      world.wake_up.set_offer_urgent();
    });
    while (!taken) std::this_thread::yield(); // as a function does which waits for that callback
    CHECK(!world.wake_up.reclaim());
    other.join();
  }
}

// An offer that lasts is taken though nobody says that it is urgent, also by a thread that had slept while nothing was
// offered.
TEST(test_lasting_offer_is_taken) {
  World world;
  world.drain.open(1, 0);
  std::atomic<bool> done{false};
  std::atomic<int> taken{0};
  CHECK(world.wake_up.stand_by());
  std::thread other([&] {
    while (world.wake_up.stand_by() && !done) {
      ++taken;
      world.wake_up.leave();
    }
    world.wake_up.leave();
  });
  for (int i = 0; i < 10; ++i) {
    world.drain.next_batch(milliseconds(30)); // meanwhile the other one may fall asleep
    const int before = taken;
    world.wake_up.offer();
    while (taken == before) std::this_thread::yield();
    CHECK(!world.wake_up.reclaim());
    while (!world.wake_up.stand_by()) std::this_thread::yield();
  }
  done = true;
  world.wake_up.leave();
  other.join();
}

// Two threads that stand by are enough: a third may end.
TEST(test_third_that_stands_by_may_end) {
  World world;
  std::atomic<bool> done{false};
  CHECK(world.wake_up.stand_by());
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!done)
        if (world.wake_up.stand_by()) world.wake_up.leave();
    });
  // An offer that is taken back at once tells how many there are; if one took it, it leaves.
  for (bool both = false; !both;) {
    both = world.wake_up.offer() == 2;
    if (world.wake_up.reclaim()) continue;
    both = false;
    while (!world.wake_up.stand_by()) std::this_thread::yield();
  }
  InThread([&] { CHECK(!world.wake_up.stand_by()); });
  CHECK(!world.wake_up.stand_by());
  done = true;
  world.wake_up.stop();
  world.wake_up.leave();
  for (std::thread &other : others) other.join();
}

// Exactly one thread leads at a time, however often the lead is offered, taken, taken back and left; what the leaders
// share needs no lock.
TEST(test_one_leads_at_a_time) {
  World world;
  constexpr int kThreads = 4;
  constexpr uint64_t kTurns = 4000;
  std::atomic<int> leading{0};
  std::atomic<bool> over{false};
  uint64_t turns = 0; // the leaders', as the drain's own things are
  const auto lead = [&](Random &random) {
    CHECK_EQ(leading.fetch_add(1), 0);
    if (++turns >= kTurns) over = true;
    if (random.one_in(4)) world.drain.next_batch(milliseconds(0));
    CHECK_EQ(leading.fetch_sub(1), 1);
  };
  world.drain.open(1, 0);             // the drain is awake
  world.wake_up.begin_barrier(false); // and does not pace itself
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      Random random(static_cast<uint64_t>(i));
      while (!over) {
        if (!world.wake_up.stand_by()) {
          std::this_thread::yield();
          continue;
        }
        for (;;) {
          lead(random);
          if (over || random.one_in(8)) {
            world.wake_up.leave();
            break;
          }
          world.wake_up.offer();
          for (uint64_t wait = random.below(4); wait > 0; --wait) std::this_thread::yield();
          if (!world.wake_up.reclaim()) break;
        }
      }
    });
  std::thread hurrying([&] {
    while (!over) {
      world.wake_up.wake_now();
      std::this_thread::yield();
    }
    world.wake_up.stop();
  });
  for (std::thread &thread : threads) thread.join();
  hurrying.join();
  CHECK(turns >= kTurns);
}

// The same with callbacks of several threads that wait for each other's: each leader offers while it runs its own, and
// whoever stands by runs the next, so that all have run at once before the first is resumed.
TEST(test_callbacks_may_wait_for_each_other) {
  for (int round = 0; round < 20; ++round) {
    World world;
    constexpr uint32_t kStreams = 3;
    for (uint32_t thread = 1; thread <= kStreams; ++thread) world.drain.open(thread, 0);
    InThread([&] {
      for (uint32_t thread = 1; thread <= kStreams; ++thread) {
        PlayedProgram program(world.publisher, thread, 0);
        program.callback();
        program.close();
      }
    });
    std::atomic<uint32_t> running{0};
    std::atomic<uint32_t> ended{0};
    std::vector<std::thread> leaders;
    for (uint32_t i = 0; i <= kStreams; ++i)
      leaders.emplace_back([&] {
        bool leads = false;
        while (ended < kStreams) {
          if (!leads) {
            leads = world.wake_up.stand_by();
            if (!leads) std::this_thread::yield();
            continue;
          }
          const Batch batch = world.step(milliseconds(1));
          ended += static_cast<uint32_t>(batch.finished.size());
          if (batch.run == Batch::kNoRun) continue;
          world.wake_up.offer();
          ++running;
          while (running < kStreams) std::this_thread::yield();
          world.resume(batch);
          leads = world.wake_up.reclaim();
        }
        if (leads) world.wake_up.leave();
      });
    for (std::thread &leader : leaders) leader.join();
    CHECK_EQ(ended.load(), kStreams);
  }
}

// stop() ends all, the one that leads and sleeps, and those that stand by, however long they have.
TEST(test_stop_ends_all_that_stand_by) {
  for (int round = 0; round < 60; ++round) {
    World world;
    std::atomic<int> leaders{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        if (!world.wake_up.stand_by()) return;
        CHECK_EQ(leaders.fetch_add(1), 0);
        while (!world.drain.next_batch(std::chrono::hours(1)).stopped) {
        }
        CHECK_EQ(leaders.fetch_sub(1), 1);
        world.wake_up.leave();
      });
    if (round % 3 == 0)
      while (leaders == 0) std::this_thread::yield();
    world.wake_up.stop();
    for (std::thread &thread : threads) thread.join();
  }
}

} // namespace
} // namespace effects::lead_test
