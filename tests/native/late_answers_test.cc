// Whoever waits for an answer gets one, also if its program has failed.
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

namespace effects::late_answers_test {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

// A record that somebody waits for and nobody will ever want is answered with a failure, and counted; what comes before
// its failed epoch has ended is for the host to answer.
TEST(test_late_awaited_record_is_answered) {
  World world;
  world.gaps_allowed = true;
  std::vector<std::string> heard;
  std::vector<uint32_t> numbers;
  for (int i = 0; i < 2; ++i)
    numbers.push_back(world.replies.ask([&, i](const Answer &answer) {
      CHECK(!answer.error.empty());
      heard.push_back(std::to_string(i));
      return Replies::Continuation();
    }));
  world.drain.open(1, 0);
  world.drain.open(2, 0); // keeps the drain awake
  InThread([&] { CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 4), 8, kCallback, numbers[0])); });
  world.drain.fail(1, 0);
  world.until_finished(1);
  CHECK_EQ(world.awaited_seen, uint64_t{1});
  CHECK_SEEN(heard, {});
  CHECK_EQ(world.publisher.stats.cancelled.load(), uint64_t{0});
  InThread([&] {
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 5), 8, kCallback, numbers[1]));
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 6), 8, kCallback, 0));
  });
  CHECK(world.step(milliseconds(1)).items.empty());
  CHECK_SEEN(heard, {"1"});
  CHECK_EQ(world.publisher.stats.cancelled.load(), uint64_t{1});
  world.drain.fail_replies("the end");
  CHECK_SEEN(heard, {"1", "0"});
  CHECK(world.replies.open().empty());
}

// A failure answers who waits for what several devices ask for alike, at once and by the thread that tells of it, and
// only those of that program: the others' answer may never come.
TEST(test_failure_answers_replicated_waiters) {
  World world;
  std::vector<std::string> heard;
  const auto ask = [&](uint32_t thread, uint32_t epoch) {
    const std::string name = std::to_string(thread) + "." + std::to_string(epoch);
    return world.replies.ask_replicated({MakeToken(thread, 0, epoch, 0)}, 2, [&heard, name](const Answer &answer) {
      heard.push_back(name + (answer.error.empty() ? "" : "!"));
      return Replies::Continuation();
    });
  };
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  world.drain.open(2, 0);
  const uint32_t failing = ask(1, 0);
  const uint32_t next = ask(1, 1);
  const uint32_t other = ask(2, 0);
  CHECK(failing != 0 && next != 0 && other != 0);
  InThread([&] {
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), 8, kCallback | kReplicated, failing));
  });
  world.drain.fail(1, 0);
  CHECK_SEEN(heard, {"1.0!"});
  // Its record comes all the same, and the host's answer is for nobody.
  const Batch batch = world.step();
  CHECK_SEEN(Items(batch), {"1.0:c0"});
  CHECK(batch.items.at(0).info.failed);
  world.replies.fail(failing, "why");
  world.resume(batch);
  world.until_finished(1);
  CHECK_SEEN(heard, {"1.0!"});
  world.replies.answer(next, {});
  world.replies.answer(other, {});
  CHECK_EQ(ask(1, 1), 0u);
  CHECK_SEEN(heard, {"1.0!", "1.1", "2.0", "1.1"});
}

// A device that comes for an answer when its program has failed already, and the record that the first one asked with
// has left, or is parked, is answered all the same.
TEST(test_late_replicated_device_is_answered) {
  for (uint32_t index : {0u, 1u}) { // leaves at once, is parked
    World world;
    world.gaps_allowed = true;
    std::vector<std::string> heard;
    const auto publish = [&](const std::string &name) {
      const Token token = MakeToken(1, 0, 0, index);
      const uint32_t number = world.replies.ask_replicated({token}, 2, [&heard, name](const Answer &answer) {
        heard.push_back(name + (answer.error.empty() ? "" : "!"));
        return Replies::Continuation();
      });
      CHECK(number != 0);
      InThread([&] { CHECK(Publish(world.publisher, Kind::kOrdered, token, 8, kCallback | kReplicated, number)); });
      return number;
    };
    world.drain.open(1, 0);
    const uint32_t number = publish("first");
    Batch run = world.step(milliseconds(1));
    if (index == 0) world.replies.answer(number, {});
    world.drain.fail(1, 0);
    CHECK_SEEN(heard, {index == 0 ? "first" : "first!"});
    publish("late");
    for (int i = 0; i < 4; ++i) {
      Batch batch = world.step(milliseconds(1));
      if (batch.run != Batch::kNoRun) run = std::move(batch);
    }
    CHECK_SEEN(heard, {index == 0 ? "first" : "first!", "late!"});
    world.resume(run);
    world.until_finished(1);
  }
}

// Who is answered so is called with no lock held: it may run the rest of its program, which may publish from here.
TEST(test_late_awaited_record_is_answered_without_a_lock) {
  World world;
  std::vector<ProducerRing *> rings;
  bool called = false;
  const uint32_t number = world.replies.ask([&](const Answer &) {
    called = true;
    InThread([&] {
      for (ProducerRing *ring : rings) {
        std::unique_lock consumer(ring->consumer, std::try_to_lock);
        CHECK(consumer.owns_lock());
      }
    });
    return Replies::Continuation();
  });
  world.drain.open(1, 0);
  std::atomic<bool> over{false};
  std::atomic<bool> published{false};
  std::thread late([&] {
    CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(2, 0, 0, 0), 8, kCallback, number));
    published = true;
    while (!over) std::this_thread::yield();
  });
  while (!published) std::this_thread::yield();
  CHECK(world.publisher.for_each_ring([&](ProducerRing &ring) {
    rings.push_back(&ring);
    return true;
  }));
  world.step(milliseconds(1));
  CHECK(called);
  over = true;
  late.join();
}

} // namespace
} // namespace effects::late_answers_test
