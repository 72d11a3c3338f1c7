// What a batch is made of: text and records, and which of them come together.
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

namespace effects::batch_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// Consecutive records with a plan and one destination become one text, in order.
TEST(test_text_is_formatted_in_order) {
  World world;
  Plan plan;
  plan.pieces.resize(1);
  plan.pieces[0].literal = "x=";
  plan.pieces[0].has_field = true;
  plan.pieces[0].type = Scalar::kInt64;
  plan.pieces.emplace_back().literal = "\n";
  world.sites.set_plan(kSite, plan);
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
      CHECK(item.kind == ItemKind::kText);
      CHECK_EQ(item.info.sink, uint64_t{3});
      text += item.data;
    }
    finished += batch.finished.size();
  }
  CHECK(text == "x=-5\nx=-4\nx=-3\n");
}

// Records without callbacks come together, one item for each stretch of one epoch's, headers included; text in one for
// each stretch of one thread's. What is unordered does not wait, what is in order waits for the epoch before; of what
// is for Python a batch has that of one thread and order domain.
TEST(test_consecutive_records_come_together) {
  for (bool text : {true, false}) {
    World world(WhenFull::kWait, size_t{1} << 20);
    const uint64_t sink = text ? world.show_text() : 0;
    for (int i = 0; i < 2; ++i) world.drain.open(1, sink);
    world.drain.open(2, sink);
    PlayedProgram other(world.publisher, 2, 0);
    InThread([&] {
      for (uint32_t epoch = 0; epoch < 2; ++epoch) {
        PlayedProgram program(world.publisher, 1, epoch);
        for (int i = 0; i < 3; ++i) program.record(static_cast<size_t>(10 * i));
        program.unordered(20);
        program.close();
      }
    });
    InThread([&] {
      other.record(8);
      other.record(8);
    });
    Batch batch = world.step();
    std::vector<std::string> ends = Ends(batch);
    if (text) {
      CHECK_SEEN(Items(batch), {"text 1.0:0,1,2,u0,u0", "text 2.0:0,1", "text 1.1:0,1,2"});
      CHECK_EQ(batch.run, Batch::kNoRun);
    } else {
      std::vector<std::vector<std::string>> expected{{"1.0:u0", "1.1:u0"}, {"1.1:0,1,2"}, {"2.0:0,1"}};
      CHECK_SEEN(Items(batch), {"1.0:0,1,2"});
      CHECK_EQ(batch.run, 1u);
      CHECK(ends.empty());
      world.resume(batch);
      for (const auto &items : expected) {
        Batch next = world.play();
        for (; next.items.empty(); next = world.play())
          for (const std::string &one : Ends(next)) ends.push_back(one);
        for (const std::string &one : Ends(next)) ends.push_back(one);
        CHECK_SEEN(Items(next), (items));
        for (const Item &item : next.items) CHECK(item.kind == ItemKind::kRecords);
      }
    }
    while (ends.size() < 2)
      for (const std::string &one : Ends(world.step())) ends.push_back(one);
    CHECK_SEEN(ends, {"1.0", "1.1"});
  }
}

// A large record stands between the others by itself, with its own memory.
TEST(test_large_record_comes_by_itself) {
  World world;
  world.drain.open(1, 0);
  InThread([&] {
    PlayedProgram program(world.publisher, 1, 0);
    for (size_t size : {10, 10, 2000, 10}) program.record(size);
  });
  const Batch batch = world.step();
  CHECK_SEEN(Items(batch), {"1.0:0,1", "large 1.0:2", "1.0:3"});
  CHECK_EQ(batch.run, 1u);
  CHECK(batch.items.at(1).block != nullptr);
}

// All the text that came before the first record for Python stays in the batch, whosever it is, ahead of it, and what
// has no order and came after it.
TEST(test_text_stays_ahead_of_a_run) {
  World world;
  const uint64_t sink = world.show_text();
  for (uint32_t thread : {1u, 2u, 3u}) world.drain.open(thread, sink);
  world.drain.open(1, 0);
  InThread([&] {
    for (uint32_t thread : {3u, 1u, 2u}) PlayedProgram(world.publisher, thread, 0).unordered(8);
    PlayedProgram(world.publisher, 1, 1).unordered(8); // for Python
    for (uint32_t thread : {3u, 1u}) PlayedProgram(world.publisher, thread, 0).unordered(8);
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first),
             {"text 3.0:u0", "text 1.0:u0", "text 2.0:u0", "text 3.0:u0", "text 1.0:u0", "1.1:u0"});
  CHECK_EQ(first.run, 1u);
}

// What was recorded before a program's failure was known and what comes after it do not come together, even in one
// batch: only of the latter the host is told that its program had failed.
TEST(test_records_before_and_after_a_failure_are_apart) {
  for (uint16_t flags : {uint16_t{kCallback}, uint16_t{0}}) {
    World world;
    world.drain.open(1, 0);
    const auto publish = [&](uint32_t index) {
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, index), 8, flags));
    };
    const Batch batch = DuringScan(
        world, [&] { publish(0); }, [&] { publish(1); }, [] {},
        [&] {
          world.drain.fail(1, 0);
          world.drain.open(2, 0);
          PlayedProgram(world.publisher, 2, 0)
              .unordered(8); // of which the drain has not heard: it reads what it was told
          publish(2);
          publish(3);
        });
    if (flags == kCallback)
      CHECK_SEEN(Items(batch), {"1.0:c0,c1", "1.0:c2,c3"});
    else
      CHECK_SEEN(Items(batch), {"1.0:0,1", "1.0:2,3"});
    CHECK(!batch.items.at(0).info.failed);
    CHECK(batch.items.at(1).info.failed);
    CHECK_EQ(batch.run, 1u);
    const Batch carried = world.step();
    CHECK_SEEN(Items(carried), {"2.0:u0"});
    CHECK(!carried.items.at(0).info.failed);
    world.resume(carried);
    world.resume(batch);
    world.until_finished(1);
  }
}

// Text is that of one thread and one place; callbacks are never formatted, and nothing is while Python wants to see
// all.
TEST(test_what_is_formatted) {
  World world;
  Plan plan;
  plan.pieces.resize(1);
  plan.pieces[0].literal = "x\n";
  world.sites.set_plan(kSite, plan);
  world.drain.open(1, /*sink=*/3);
  world.drain.open(2, /*sink=*/3);
  world.drain.open(3, /*sink=*/0);
  for (uint32_t thread = 1; thread <= 3; ++thread)
    InThread([&] {
      PlayedProgram program(world.publisher, thread, 0);
      for (int i = 0; i < 2; ++i) program.record(2000);
      if (thread == 3) program.callback();
    });
  const Batch first = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(first), {"text 1.0:#2", "text 2.0:#2", "large 3.0:0", "large 3.0:1", "3.0:c2"});
  CHECK(first.items.at(0).data == "x\nx\n");
  world.resume(first);
  world.drain.show_python(true);
  world.drain.open(4, /*sink=*/3);
  InThread([&] { PlayedProgram(world.publisher, 4, 0).record(8); });
  Batch batch = world.drain.next_batch(kPatience);
  while (batch.items.empty()) batch = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(batch), {"4.0:0"});
  CHECK_EQ(batch.run, 4u);
  world.resume(batch);
  world.drain.show_python(false);
  world.drain.open(5, /*sink=*/3);
  InThread([&] {
    PlayedProgram program(world.publisher, 5, 0);
    program.callback();
    program.record(8);
  });
  batch = world.drain.next_batch(kPatience);
  while (batch.items.empty()) batch = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(batch), {"5.0:c0", "text 5.0:#1"});
}

// Text that follows records for Python goes with them, so that both travel in one item; behind a callback it does not.
TEST(test_text_follows_records) {
  World world;
  Plan plan;
  plan.pieces.emplace_back().literal = "x\n";
  world.sites.set_plan(kSite, plan);
  world.drain.open(1, /*sink=*/3);
  InThread([&] {
    const auto publish = [&](uint64_t site, uint32_t index, uint16_t flags) {
      CHECK(world.publisher.publish(Kind::kOrdered, site, MakeToken(1, 0, 0, index), 0, nullptr, 0, flags));
    };
    publish(kSite, 0, 0);
    for (uint32_t index = 1; index < 5; ++index) publish(index % 2 == 0 ? kSite : kSite + 1, index, 0);
    publish(kSite + 1, 5, kCallback);
    publish(kSite, 6, 0);
    Close(world.publisher, 1, 0, {{0, 7}});
  });
  std::vector<std::string> items;
  for (size_t finished = 0; finished == 0;) {
    const Batch batch = world.drain.next_batch(kPatience);
    for (const std::string &item : Items(batch)) items.push_back(item);
    finished += batch.finished.size();
    if (batch.has_run()) world.resume(batch);
  }
  CHECK_SEEN(items, {"text 1.0:#1", "1.0:1,2,3,4,c5", "text 1.0:#1"});
}

} // namespace
} // namespace effects::batch_test
