// The run of a batch: the records of one thread's programs, with which it ends.
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

namespace effects::run_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// A batch ends with the callbacks of one thread: it says whose, all that follows them in their program comes with them,
// and nothing of another thread's does, whose callbacks come in the next batch, though the first have not run yet. Text
// that came before stays ahead of them.
TEST(test_batch_ends_with_one_threads_callbacks) {
  World world(WhenFull::kWait, size_t{1} << 20);
  world.drain.open(1, 0);
  world.drain.open(2, 0);
  world.drain.open(3, world.show_text());
  for (uint32_t thread : {3u, 1u, 2u})
    InThread([&] {
      PlayedProgram program(world.publisher, thread, 0);
      program.record(8);
      if (thread != 3) {
        program.callback();
        program.record(8);
        program.callback(2000);
      }
      program.close();
    });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"text 3.0:0", "1.0:0,c1,2,c3"});
  CHECK_EQ(first.run, 1u);
  CHECK_SEEN(Ends(first), {"1.0"}); // once its callbacks have run

  const Batch second = world.step();
  CHECK_SEEN(Items(second), {"2.0:0,c1,2,c3"});
  CHECK_EQ(second.run, 2u);
  CHECK_SEEN(Ends(second), {"2.0"});

  // Others' epochs end meanwhile.
  Batch last = world.step();
  while (last.finished.empty()) last = world.step();
  CHECK_SEEN(Ends(last), {"3.0"});
  world.resume(second);
  world.resume(first);
}

// A suspended stream's later records wait until it is resumed; its next callbacks are a batch again.
TEST(test_suspended_thread_waits_for_its_resumption) {
  World world;
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  InThread([&] {
    PlayedProgram(world.publisher, 1, 0).callback();
    Close(world.publisher, 1, 0, {{0, 1}});
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"1.0:c0"});
  CHECK_SEEN(Ends(first), {"1.0"});
  InThread([&] {
    PlayedProgram program(world.publisher, 1, 1);
    program.callback();
    program.close();
  });
  for (int i = 0; i < 3; ++i) {
    const Batch none = world.step(milliseconds(1));
    CHECK(none.items.empty() && none.finished.empty());
    CHECK_EQ(none.run, Batch::kNoRun);
  }
  world.resume(first);
  Batch second = world.step();
  std::vector<std::string> ends = Ends(second);
  while (second.run == Batch::kNoRun) {
    CHECK(second.items.empty());
    second = world.step();
    for (const std::string &one : Ends(second)) ends.push_back(one);
  }
  CHECK_SEEN(Items(second), {"1.1:c0"});
  world.resume(second);
  while (ends.empty()) ends = Ends(world.step());
  CHECK_SEEN(ends, {"1.1"});
}

// What is unordered and comes behind another thread's callbacks is in the next batch, before they are resumed; nothing
// of it is lost, and its epoch ends after it. Records for Python are in one of their own for each thread.
TEST(test_unordered_records_do_not_wait_behind_callbacks) {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    for (uint32_t thread : {1u, 2u, 3u}) world.drain.open(thread, sink);
    InThread([&] { PlayedProgram(world.publisher, 1, 0).unordered_callback(); });
    InThread([&] {
      PlayedProgram program(world.publisher, 2, 0);
      program.unordered(8);
      program.unordered(2000);
      program.record(8);
      program.close();
      PlayedProgram(world.publisher, 3, 0).unordered(8);
    });
    const Batch first = world.step();
    if (text)
      CHECK_SEEN(Items(first), {"text 2.0:u0,u0", "text 3.0:u0", "1.0:cu0"});
    else
      CHECK_SEEN(Items(first), {"1.0:cu0"});
    CHECK_EQ(first.run, 1u);
    std::vector<uint32_t> runs;
    std::vector<std::string> items;
    std::vector<std::string> ends;
    while (ends.empty() || world.unordered_seen < 4) {
      const Batch next = world.play();
      if (!next.items.empty()) runs.push_back(next.run);
      for (const std::string &one : Items(next)) items.push_back(one);
      for (const std::string &one : Ends(next)) ends.push_back(one);
    }
    if (text) {
      CHECK_SEEN(items, {"text 2.0:0"});
      for (const uint32_t run : runs) CHECK_EQ(run, Batch::kNoRun);
    } else {
      CHECK_SEEN(items, {"2.0:u0", "large 2.0:u0", "3.0:u0", "2.0:0"});
      CHECK((runs == std::vector<uint32_t>{2, 3, 2}));
    }
    CHECK_SEEN(ends, {"2.0"});
    world.resume(first);
  }
}

// Records without a plan begin a run as callbacks do: the batch is their thread's and domain's, other unordered ones
// come in the next ones, before it is resumed, and those in order stay. Text that has no order is ahead of it.
TEST(test_records_without_a_plan_begin_a_run) {
  for (bool ordered : {true, false})
    for (size_t size : {size_t{8}, size_t{2000}}) { // together with others or by itself
      World world;
      world.drain.open(1, 0);
      world.drain.open(2, world.show_text());
      world.drain.open(3, 0);
      InThread([&] {
        PlayedProgram program(world.publisher, 1, 0);
        if (ordered)
          program.record(size);
        else
          program.unordered(size);
      });
      InThread([&] {
        PlayedProgram text(world.publisher, 2, 0);
        text.unordered(8);
        text.record(8);
        PlayedProgram python(world.publisher, 3, 0);
        python.unordered(8);
        python.record(8);
        PlayedProgram(world.publisher, 1, 0).unordered(8);
      });
      const Batch first = world.step();
      CHECK_EQ(first.run, 1u);
      std::vector<std::string> items{"text 2.0:u0", (size == 8 ? "1.0:" : "large 1.0:") + std::string("0")};
      if (!ordered) items = size == 8 ? std::vector<std::string>{"text 2.0:u0", "1.0:u0,u0"}
                                      : std::vector<std::string>{"text 2.0:u0", "large 1.0:u0", "1.0:u0"};
      CHECK_SEEN(Items(first), (items));
      for (const Item &item : first.items) CHECK(!item.has_callbacks && item.reply == 0);

      items.clear();
      for (int i = 0; i < 4; ++i)
        for (const std::string &one : Items(world.play(milliseconds(20)))) items.push_back(one);
      std::vector<std::string> expected{"3.0:u0", "1.0:u0", "text 2.0:0", "3.0:0"};
      if (!ordered) expected.erase(expected.begin() + 1);
      CHECK_SEEN(items, (expected));

      // The domain is held as by callbacks, and no other.
      InThread([&] {
        PlayedProgram program(world.publisher, 1, 0);
        if (ordered)
          CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 1), 8));
        else
          program.record(8);
      });
      if (ordered) CHECK(world.step(milliseconds(1)).items.empty());
      world.resume(first);
      Batch last = world.step();
      while (last.items.empty()) last = world.step();
      CHECK_SEEN(Items(last), {ordered ? "1.0:1" : "1.0:0"});
    }
}

// Unordered callbacks that come together are a batch each, and nothing is behind them. Text is ahead of all.
TEST(test_unordered_callbacks_are_batches_of_their_own) {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    for (uint32_t thread = 1; thread <= 4; ++thread) world.drain.open(thread, sink);
    InThread([&] {
      for (uint32_t thread = 1; thread <= 3; ++thread) PlayedProgram(world.publisher, thread, 0).unordered_callback();
      PlayedProgram(world.publisher, 4, 0).unordered(8);
      PlayedProgram(world.publisher, 2, 0).unordered_callback();
      PlayedProgram(world.publisher, 1, 0).unordered(8);
    });
    // step() sees that nothing of another thread's waits for a run.
    const Batch first = world.step();
    CHECK_EQ(first.run, 1u);
    if (text)
      CHECK_SEEN(Items(first), {"text 4.0:u0", "text 1.0:u0", "1.0:cu0"});
    else
      CHECK_SEEN(Items(first), {"1.0:cu0"});
    std::vector<std::string> items;
    while (world.unordered_seen < 6)
      for (const std::string &one : Items(world.step())) items.push_back(one);
    if (text)
      CHECK_SEEN(items, {"2.0:cu0", "3.0:cu0", "2.0:cu0"});
    else
      CHECK_SEEN(items, {"2.0:cu0", "3.0:cu0", "4.0:u0", "2.0:cu0", "1.0:u0"});
    CHECK_EQ(world.unordered_seen, uint64_t{6});
  }
}

// A callback that somebody waits for is the last of its batch: what follows it in its program comes when it is resumed,
// in as many batches as there are such callbacks.
TEST(test_awaited_callback_is_the_last_of_its_batch) {
  for (bool text : {true, false}) {
    World world;
    world.drain.open(1, text ? world.show_text() : 0);
    InThread([&] {
      PlayedProgram program(world.publisher, 1, 0);
      program.callback();
      program.record(8);
      program.callback(8, /*reply=*/1);
      program.record(8);
      program.callback(8, /*reply=*/2);
      program.record(8);
      program.close();
    });
    std::vector<std::vector<std::string>> expected{{"1.0:c0,1,c2"}, {"1.0:3,c4"}, {"1.0:5"}};
    if (text) expected = {{"1.0:c0", "text 1.0:1", "1.0:c2"}, {"text 1.0:3", "1.0:c4"}, {"text 1.0:5"}};
    for (const std::vector<std::string> &items : expected) {
      const Batch batch = world.step();
      CHECK_SEEN(Items(batch), (items));
      CHECK(batch.finished.empty() || items == expected.back());
      if (items != expected.back()) {
        CHECK(world.step(milliseconds(1)).items.empty());
        CHECK_EQ(batch.run, 1u);
      }
      if (batch.run != Batch::kNoRun) world.resume(batch);
    }
    world.until_finished(1);
  }
}

// The same for records that were parked, across domains, with a failure over gaps, and for plain ones.
TEST(test_parked_awaited_callbacks_come_one_by_one) {
  for (int mode = 0; mode < 4; ++mode) {
    const bool fails = mode % 2 != 0;
    const bool text = mode / 2 != 0;
    World world;
    world.gaps_allowed = true;
    world.drain.open(1, text ? world.show_text() : 0);
    InThread([&] {
      // Early: with the failure, 0 never comes.
      for (uint32_t domain : {0u, 1u})
        for (uint32_t index : {2u, 1u})
          CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, domain, 0, index), 8, kCallback, /*reply=*/1));
      if (!fails) {
        for (uint32_t domain : {0u, 1u}) CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, domain, 0, 0), 8));
        Close(world.publisher, 1, 0, {{0, 3}, {1, 3}});
      }
    });
    if (fails) world.drain.fail(1, 0);
    size_t callbacks = 0;
    while (world.finished == 0) {
      const Batch batch = world.step();
      size_t here = 0;
      for (const Item &item : batch.items) {
        CHECK_EQ(here, size_t{0}); // nothing behind one that somebody waits for
        if (item.reply != 0) ++here;
        CHECK_EQ(item.info.failed, fails);
      }
      callbacks += here;
      if (text || fails) CHECK_EQ(batch.run, here == 0 ? Batch::kNoRun : 1u);
      if (here != 0) {
        CHECK(batch.finished.empty());
        CHECK_EQ(batch.run, 1u);
      }
      if (batch.run != Batch::kNoRun) world.resume(batch);
    }
    CHECK_EQ(callbacks, size_t{4});
  }
  World world;
  for (int i = 0; i < 2; ++i) world.drain.open(kPlainThread, 0);
  InThread([&] {
    for (uint32_t epoch : {1u, 0u}) {
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(kPlainThread, 0, epoch, 0), 8, kCallback, 1));
      Close(world.publisher, kPlainThread, epoch, {{0, 1}});
    }
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"plain.0:c0"});
  world.resume(first);
  Batch second = world.step();
  while (second.items.empty()) second = world.step();
  CHECK_SEEN(Items(second), {"plain.1:c0"});
}

// Everything unordered of a thread has left when its epoch ends, though it came between callbacks of several threads.
TEST(test_carried_records_leave_before_their_epoch_ends) {
  World world;
  for (uint32_t thread = 1; thread <= 3; ++thread) world.drain.open(thread, 0);
  InThread([&] {
    PlayedProgram(world.publisher, 1, 0).unordered_callback();
    PlayedProgram(world.publisher, 2, 0).unordered_callback();
    PlayedProgram(world.publisher, 3, 0).unordered(8);
    PlayedProgram(world.publisher, 2, 0).unordered(8);
    for (uint32_t thread = 1; thread <= 3; ++thread) PlayedProgram(world.publisher, thread, 0).close();
  });
  world.until_finished(3); // step() sees that nothing follows the end of its epoch
  CHECK_EQ(world.unordered_seen, uint64_t{4});
}

} // namespace
} // namespace effects::run_test
