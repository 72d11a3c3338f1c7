// What comes early is parked, and neither a full parking nor a full batch holds up anything for good.
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

namespace effects::parking_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// A program that floods its ring while an earlier one, which needs the same thread, has published nothing: the limit of
// what is parked grows, and both end.
TEST(test_later_program_floods_before_the_earlier) {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  constexpr uint64_t kFlood = 1500;
  std::thread device([&] {
    PlayedProgram later(world.publisher, 1, 1);
    for (uint64_t i = 0; i < kFlood; ++i) later.record(16);
    later.close();
    PlayedProgram earlier(world.publisher, 1, 0);
    for (int i = 0; i < 10; ++i) earlier.record(16);
    earlier.close();
  });
  world.until_finished(2);
  device.join();
  world.check_nothing_lost(kFlood + 10);
}

// The same while another thread's programs run without a pause: their progress is not that of the flooded thread.
TEST(test_flood_beside_a_busy_thread) {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  std::atomic<bool> done{false};
  std::thread device([&] {
    PlayedProgram later(world.publisher, 1, 1);
    for (int i = 0; i < 800; ++i) later.record(16);
    later.close();
    PlayedProgram(world.publisher, 1, 0).close();
    done = true;
  });
  std::atomic<size_t> others{0};
  std::atomic<bool> over{false};
  std::thread busy([&] {
    for (uint32_t epoch = 0; !done; ++epoch) {
      world.drain.open(2, 0);
      PlayedProgram program(world.publisher, 2, epoch);
      program.record(8);
      program.close();
      ++others;
    }
    over = true;
  });
  while (!over) world.play(); // it may wait for room
  busy.join();
  world.until_finished(2 + others);
  device.join();
}

// A device whose record waits in its ring, because too much is parked, gets on though what is parked falls below the
// limit between any two scans, as another thread's programs come and go.
TEST(test_parking_grows_beside_a_steady_thread) {
  World world;
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  world.wake_up.begin_barrier(false); // the drain does not pace itself
  world.step(milliseconds(1));
  std::atomic<uint32_t> wanted{0};
  std::atomic<uint32_t> there{0};
  std::atomic<bool> over{false};
  std::thread steady([&] { // one program more between two batches
    while (!over)
      if (const uint32_t epoch = there; epoch < wanted) {
        world.drain.open(2, 0);
        PlayedProgram program(world.publisher, 2, epoch);
        program.record(8);
        program.close();
        ++there;
      } else {
        std::this_thread::yield();
      }
  });
  const auto one_more = [&] {
    ++wanted;
    while (there < wanted) std::this_thread::yield();
  };
  for (int i = 0; i < 10; ++i) one_more();
  std::atomic<bool> done{false};
  std::thread device([&] {
    PlayedProgram later(world.publisher, 1, 1);
    for (int i = 0; i < 800; ++i) later.record(16);
    later.close();
    PlayedProgram(world.publisher, 1, 0).close();
    done = true;
  });
  const auto start = std::chrono::steady_clock::now();
  while (!done) {
    world.play();
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    one_more();
  }
  over = true;
  steady.join();
  device.join();
  world.until_finished(2 + there);
}

// A batch has a size, but an unordered record does not fall behind its program's end because another ring filled the
// batch, and a thread's flood does not keep the drain from the other rings.
void FullBatch(bool text) {
  World world(WhenFull::kWait, size_t{1} << 20);
  const uint64_t sink = text ? world.show_text() : 0;
  world.drain.open(1, sink);
  world.drain.open(2, sink);
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
  std::thread third([&] { in_turn(2, [&] { PlayedProgram(world.publisher, 1, 0).unordered(8); }); });
  std::thread second([&] {
    in_turn(1, [&] {
      PlayedProgram flood(world.publisher, 2, 0);
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
  InThread([&] { PlayedProgram(world.publisher, 2, 0).close(); });
  world.until_finished(2);
  CHECK_EQ(world.unordered_seen, uint64_t{8002});
}

TEST(test_full_batch_loses_no_unordered_record) {
  for (bool text : {true, false}) FullBatch(text);
}

// Records that must wait in their ring, because too much is parked, hold up nothing that stands behind them: neither a
// record without order nor what is left of a failed program.
TEST(test_full_parking_loses_nothing_behind_it) {
  World world;
  for (int i = 0; i < 3; ++i) world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the small rings' size; the one below is larger than the limit
  world.publisher.ring_bytes = 32 * kSmallest;
  InThread([&] {
    PlayedProgram flood(world.publisher, 1, 2);
    for (int i = 0; i < 600; ++i) flood.record(32);
    PlayedProgram(world.publisher, 1, 0).unordered(8);
    for (uint32_t index = 1; index < 9; index += 2)
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 1, index), 8));
    flood.close();
  });
  InThread([&] { PlayedProgram(world.publisher, 1, 0).close(); });
  world.drain.fail(1, 1);
  world.gaps_allowed = true;
  world.until_finished(3);
  CHECK_EQ(world.unordered_seen, uint64_t{1});
  CHECK_EQ(world.ordered_seen, uint64_t{604});
}

// A program's failure ends its epoch at once, whatever it did not publish, while others run on.
TEST(test_failed_programs_do_not_hold_up_others) {
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
        PlayedProgram program(world.publisher, 1, epoch);
        for (int i = 0; i < 10; ++i, ++attempts) program.record(50);
        program.close();
      }
    }
  });
  world.until_finished(kEpochs);
  producer.join();
  world.check_nothing_lost(attempts);
}

} // namespace
} // namespace effects::parking_test
