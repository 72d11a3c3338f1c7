// Untracked records and programs: who waits for whom.
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

// An untracked record never leaves before the programs that were dispatched before it, though the drain may see it
// before it has read of them.
void UntrackedRecordsFollow(bool text) {
  World world;
  const uint64_t sink = text ? world.show_text() : 0;
  constexpr uint32_t kEpochs = 1000;
  std::atomic<uint32_t> settled{0};
  std::thread host([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      while (settled < epoch) std::this_thread::yield(); // no earlier program holds the untracked record back
      world.drain.open(1, sink);
      CHECK(world.untracked(/*ordered=*/true, 8));
      Program program(world.publisher, 1, epoch);
      program.record(8);
      program.close();
    }
  });
  // Keeps the drain scanning, so that it often passes its inbox just before a dispatch.
  std::thread waker([&] {
    while (settled < kEpochs) {
      world.wake_up.wake_now();
      std::this_thread::yield();
    }
  });
  uint32_t programs = 0;
  uint32_t untracked = 0;
  while (settled < kEpochs) {
    const Batch batch = world.play();
    for (const Item &item : batch.items) {
      if (item.info.thread == 1)
        programs += static_cast<uint32_t>(item.count);
      else
        // The k-th untracked record has k programs before it.
        CHECK((untracked += static_cast<uint32_t>(item.count)) <= programs);
    }
    settled = static_cast<uint32_t>(std::min<uint64_t>(world.finished, world.untracked_seen));
  }
  host.join();
  waker.join();
}

TEST(test_untracked_record_follows_earlier_programs) {
  for (bool text : {true, false}) UntrackedRecordsFollow(text);
}

// An untracked record that was dropped as the oldest counts as gone, so that who waits for all untracked records ends
// waiting.
TEST(test_dropped_untracked_records_are_not_waited_for) {
  for (bool text : {true, false})
    for (bool ordered : {true, false}) {
      World world(WhenFull::kDropOldest);
      if (text) world.show_text();
      InThread([&] {
        for (int i = 0; i < 200; ++i) CHECK(world.untracked(ordered, 100));
      });
      uint64_t released = 0;
      while (released < world.publisher.untracked_published.load()) released = world.play().untracked_released;
      CHECK_EQ(released, uint64_t{200});
      CHECK(world.publisher.stats.dropped.load() > 0);
      world.check_nothing_lost(200);
    }
}

// The drain does not fall into its deep sleep while an untracked record is parked: if the one before it is dropped,
// nobody will tell.
TEST(test_parked_untracked_record_keeps_the_drain_awake) {
  World world(WhenFull::kDropNewest);
  const uint32_t missing = world.publisher.next_untracked_token(true).index;
  InThread([&] { CHECK(world.untracked(/*ordered=*/true, 8)); });
  CHECK_EQ(world.step(milliseconds(1)).items.size(), size_t{0}); // returns at all
  InThread([&] {
    world.drain.open(1, 0);
    Program filler(world.publisher, 1, 0);
    for (int i = 0; i < 100; ++i) filler.unordered(100);
    CHECK(!Publish(world.publisher, Kind::kOrdered, {StreamOf(kUntrackedThread, 0), 0, 0, missing}, 100));
    filler.close();
  });
  world.until_finished(1);
  while (world.untracked_seen == 0) world.play();
  CHECK_EQ(world.untracked_seen, uint64_t{1});
}

// Untracked records that come with records of untracked programs for Python count as replayed when these are resumed,
// those before them at once.
TEST(test_untracked_records_in_a_run_count_when_it_is_resumed) {
  for (bool text : {true, false}) {
    World world;
    if (text) world.show_text();
    InThread([&] {
      CHECK(world.untracked(true, 8));
      CHECK(world.untracked(true, 8, kCallback));
      CHECK(world.untracked(true, 8));
      CHECK(world.untracked(false, 8));
      CHECK(world.untracked(false, 8, kCallback));
    });
    const Batch first = world.step();
    if (text)
      CHECK_SEEN(Items(first), {"text untracked:0", "untracked:c1", "text untracked:2,u0", "untracked:cu0"});
    else
      CHECK_SEEN(Items(first), {"untracked:0,c1,2,u0,cu0"});
    const uint64_t before = text ? 1 : 0;
    CHECK_EQ(first.run, kUntrackedThread);
    CHECK_EQ(first.untracked_released, before);
    CHECK_EQ(first.untracked_in_run, 5 - before);
    world.drain.open(1, 0); // keeps the drain awake
    CHECK_EQ(world.step(milliseconds(1)).untracked_released, before);
    world.resume(first);
    const Batch resumed = world.step();
    CHECK_EQ(resumed.untracked_released, uint64_t{5});
    CHECK_EQ(resumed.untracked_in_run, uint64_t{0});
  }
}

// A run of untracked records none of which is ordered suspends no stream, only the forgetting of sites: what is
// untracked and in order, and a program dispatched behind it, go on. As soon as one of its records is ordered, they
// wait.
TEST(test_run_of_unordered_untracked_records_holds_nothing) {
  for (uint16_t flags : {uint16_t{0}, uint16_t{kCallback}})
    for (bool ordered : {false, true}) {
      World world;
      world.sites.retain(kSite);
      InThread([&] {
        CHECK(world.untracked(false, 8, flags));
        if (ordered) CHECK(world.untracked(true, 8, flags));
        CHECK(world.untracked(false, 8, flags));
      });
      world.drain.release_site(kSite);
      const Batch first = world.step();
      CHECK_EQ(first.items.size(), size_t{1});
      CHECK_EQ(first.items.at(0).has_callbacks, flags == kCallback);
      CHECK_EQ(first.run, kUntrackedThread);
      CHECK_EQ(first.ordered_run, ordered);
      CHECK_EQ(first.suspended(), ordered ? kUntrackedThread : kNoThread);
      CHECK_EQ(first.untracked_in_run, uint64_t{ordered ? 3u : 2u});

      InThread([&] { CHECK(world.untracked(true, 8)); });
      if (ordered) {
        world.drain.open(1, 0); // keeps the drain awake
        InThread([&] {
          Program program(world.publisher, 1, 0);
          program.record(8);
          program.close();
        });
        for (int i = 0; i < 4; ++i) {
          const Batch none = world.step(milliseconds(1));
          CHECK(none.items.empty() && none.finished.empty() && none.forgotten.empty());
        }
        world.resume(first);
        Batch next = world.step();
        while (next.items.empty()) next = world.step();
        CHECK_SEEN(Items(next), {"untracked:1"});
        CHECK_EQ(next.untracked_released, uint64_t{3});
        world.resume(next);
        next = world.step();
        while (next.items.empty()) next = world.step();
        CHECK_SEEN(Items(next), {"1.0:0"});
        world.resume(next);
        world.until_finished(1);
        continue;
      }
      Batch next = world.step();
      CHECK_SEEN(Items(next), {"untracked:0"});
      CHECK_EQ(next.suspended(), kUntrackedThread);
      CHECK_EQ(next.untracked_released, uint64_t{0});
      world.resume(next);
      world.drain.open(1, 0);
      InThread([&] {
        Program program(world.publisher, 1, 0);
        program.record(8);
        program.close();
      });
      while (world.finished == 0) CHECK(world.play().forgotten.empty());
      CHECK_EQ(world.ordered_seen, uint64_t{1});
      CHECK(world.sites.holders(kSite) == 0 && world.sites.any_dying());
      world.resume(first);
      next = world.step();
      CHECK_EQ(next.untracked_released, uint64_t{3});
      CHECK((next.forgotten == std::vector<uint64_t>{kSite}));
    }
}

// A program's records leave after the untracked records that were published before its dispatch, though a scan may see
// only the program's, because it had passed the ring of the others.
TEST(test_program_follows_earlier_untracked_records) {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    std::atomic<int> stage{0};
    std::thread program_thread; // its ring comes last, so that the scan sees all that is in it
    const auto await = [&](int awaited) {
      while (stage < awaited) std::this_thread::yield();
    };
    const Batch batch = DuringScan(
        world, [&] { CHECK(world.untracked(/*ordered=*/false, 8)); },
        [&] {
          CHECK(world.untracked(/*ordered=*/false, 8));
          program_thread = std::thread([&] {
            CHECK(world.untracked(/*ordered=*/false, 8));
            stage = 1;
            await(2);
            Program program(world.publisher, 1, 0);
            program.record(8);
            program.close();
            stage = 3;
          });
          await(1);
        },
        [&] { CHECK(world.untracked(/*ordered=*/true, 8)); },
        [&] {
          world.drain.open(1, sink);
          stage = 2;
          await(3);
        });
    program_thread.join();
    std::vector<std::string> items = Items(batch);
    if (batch.run != Batch::kNoRun) world.resume(batch);
    while (world.finished == 0)
      for (const std::string &one : Items(world.play())) items.push_back(one);
    if (text)
      CHECK_SEEN(items, {"text untracked:u0,u0,u0,0", "text 1.0:0"});
    else
      CHECK_SEEN(items, {"untracked:u0,u0,u0,0", "1.0:0"});
  }
}

// Before untracked records are taken the host says whether Python must write their text. What is published after it has
// said so waits until it says so again.
TEST(test_untracked_records_after_the_host_was_asked_wait) {
  World world;
  world.show_text();
  CHECK(world.untracked(/*ordered=*/true, 8));
  int asked = 0;
  const Batch batch = world.drain.next_batch(kPatience, [&] {
    if (++asked == 1)
      CHECK(world.untracked(/*ordered=*/true, 8));
    else
      world.drain.show_python(true);
  });
  CHECK_EQ(asked, 2);
  CHECK_SEEN(Items(batch), {"text untracked:0", "untracked:1"});
}

} // namespace
} // namespace effects
