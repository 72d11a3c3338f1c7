// The drain: effects of programs that JAX dispatches, beside programs of `effects.jit`.
#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "world.h"

namespace effects::plain_test {
namespace {

// A plain effect never leaves before the programs that were dispatched before it, nor after later ones, though the
// drain may see it before it has read of them.
TEST(test_plain_effects_and_programs_alternate) {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    constexpr uint32_t kEpochs = 1000;
    std::atomic<uint32_t> settled{0};
    std::thread host([&] {
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        while (settled < epoch) std::this_thread::yield(); // no earlier program holds the plain effect back
        world.drain.open(1, sink);
        CHECK(world.plain(/*ordered=*/true, 8));
        PlayedProgram program(world.publisher, 1, epoch);
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
    uint64_t programs = 0;
    uint64_t plain = 0;
    while (settled < kEpochs) {
      for (const Item &item : world.play().items)
        for (uint64_t i = 0; i < item.count; ++i)
          CHECK_EQ(item.info.thread == 1 ? programs++ : 1 + plain++, plain); // a program, a plain effect, and so on
      settled = static_cast<uint32_t>(world.finished / 2);
    }
    host.join();
    waker.join();
  }
}

// The epoch of a plain effect that was dropped ends, so that whoever waits for it goes on.
TEST(test_dropped_plain_effects_end) {
  for (bool ordered : {true, false}) {
    World world(WhenFull::kDrop);
    InThread([&] {
      for (int i = 0; i < 200; ++i) world.plain(ordered, 100);
    });
    world.until_finished(200);
    CHECK(world.publisher.stats.dropped.load() > 0);
    world.check_nothing_lost(200);
  }
}

// The records of plain effects in an order are one run, which ends with their epochs.
TEST(test_plain_effects_are_one_run) {
  World world;
  InThread([&] {
    CHECK(world.plain(true, 8));
    CHECK(world.plain(true, 8, kCallback));
  });
  const Batch batch = world.step();
  CHECK_SEEN(Items(batch), {"plain.0:0", "plain.1:c0"});
  CHECK_EQ(batch.run, kPlainThread);
  CHECK_EQ(batch.finished.size(), size_t{2});
}

// A program's records leave after the plain effects that were published before its dispatch, though a scan may see only
// the program's, because it had passed the ring of the others.
TEST(test_program_follows_earlier_plain_effects) {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    std::atomic<int> stage{0};
    std::thread program_thread; // its ring comes last, so that the scan sees all that is in it
    const auto await = [&](int awaited) {
      while (stage < awaited) std::this_thread::yield();
    };
    const Batch batch = DuringScan(
        world, [&] { CHECK(world.plain(/*ordered=*/false, 8)); },
        [&] {
          CHECK(world.plain(/*ordered=*/false, 8));
          program_thread = std::thread([&] {
            CHECK(world.plain(/*ordered=*/false, 8));
            stage = 1;
            await(2);
            PlayedProgram program(world.publisher, 1, 0);
            program.record(8);
            program.close();
            stage = 3;
          });
          await(1);
        },
        [&] { CHECK(world.plain(/*ordered=*/true, 8)); },
        [&] {
          world.drain.open(1, sink);
          stage = 2;
          await(3);
        });
    program_thread.join();
    std::vector<std::string> items = Items(batch);
    if (batch.run != Batch::kNoRun) world.resume(batch);
    while (world.finished < 5)
      for (const std::string &one : Items(world.play())) items.push_back(one);
    CHECK_SEEN(items, {"plain.0:u0", "plain.1:u0", "plain.2:u0", "plain.3:0", text ? "text 1.0:0" : "1.0:0"});
  }
}

} // namespace
} // namespace effects::plain_test
