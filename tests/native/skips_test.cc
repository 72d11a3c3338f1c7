// Effects that are left out: they take their numbers, and what stands behind them comes in its order, on time.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "world.h"

namespace effects::skips_test {
namespace {

using check::MakeToken;
using check::Random;

// A program on its device that leaves effects out.
class Program {
public:
  Program(World &world, uint32_t thread, uint32_t epoch) : world_(world), thread_(thread), epoch_(epoch) {}
  void record(size_t size = 8, uint32_t domain = 0) {
    Publish(world_.publisher, Kind::kOrdered, MakeToken(thread_, domain, epoch_, next_[domain]++), size);
  }
  void skip(uint64_t count = 1, uint32_t domain = 0) {
    for (; count > 0; --count) world_.publisher.skip(MakeToken(thread_, domain, epoch_, next_[domain]++), kDevice);
  }
  void close() {
    std::vector<std::pair<uint32_t, uint32_t>> finals(next_.begin(), next_.end());
    if (finals.empty()) finals.emplace_back(0, 0);
    Close(world_.publisher, thread_, epoch_, finals);
  }

private:
  World &world_;
  uint32_t thread_, epoch_;
  std::map<uint32_t, uint32_t> next_;
};

// All that leaves the drain until so many programs have ended.
std::vector<std::string> ItemsUntil(World &world, size_t epochs) {
  std::vector<std::string> seen;
  while (world.finished < epochs) {
    const Batch batch = world.play();
    for (const std::string &item : Items(batch)) seen.push_back(item);
  }
  return seen;
}

// A program whose effects are all left out ends.
TEST(test_program_of_skips_ends) {
  World world;
  world.gaps_allowed = true;
  CHECK_EQ(world.drain.open(1, 0), 0u);
  InThread([&] {
    Program program(world, 1, 0);
    program.skip(100000);
    program.close();
  });
  CHECK_SEEN(ItemsUntil(world, 1), {});
  world.check_nothing_lost(0);
}

// Skips ahead of records, between them and behind them.
TEST(test_skips_among_records) {
  World world;
  world.gaps_allowed = true;
  CHECK_EQ(world.drain.open(1, 0), 0u);
  CHECK_EQ(world.drain.open(1, 0), 1u);
  InThread([&] {
    Program program(world, 1, 0);
    program.skip(2);
    program.record();
    program.record();
    program.skip(3);
    program.record();
    program.skip(1);
    program.close();
    Program next(world, 1, 1);
    next.skip(1);
    next.record();
    next.close();
  });
  std::string all;
  for (const std::string &item : ItemsUntil(world, 2)) all += item + ";";
  uint64_t records = world.ordered_seen;
  CHECK_EQ(records, uint64_t{4});
  world.check_nothing_lost(4);
}

// A run that the drain takes a part of goes on, and nothing of it is taken twice: each batch is taken between two
// skips.
TEST(test_run_of_skips_is_taken_in_parts) {
  World world;
  world.gaps_allowed = true;
  CHECK_EQ(world.drain.open(1, 0), 0u);
  std::atomic<int> stage{0};
  std::thread device([&] {
    Program program(world, 1, 0);
    for (int i = 0; i < 20; ++i) {
      while (stage < i) std::this_thread::yield();
      program.skip(1 + static_cast<uint64_t>(i) % 3);
      if (i % 5 == 4) program.record();
      ++stage;
      while (stage < i + 1) std::this_thread::yield();
    }
    program.close();
  });
  while (world.finished < 1) world.play(std::chrono::milliseconds(0));
  device.join();
  CHECK_EQ(world.ordered_seen, uint64_t{4});
  world.check_nothing_lost(4);
}

// One program's effects lie in several rings, as those of a program whose parts different threads run: what one thread
// skips, others' records wait for, and nothing wakes the drain for it.
TEST(test_skips_in_another_threads_ring) {
  World world;
  world.gaps_allowed = true;
  CHECK_EQ(world.drain.open(1, 0), 0u);
  InThread([&] { Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 1), 8); });
  CHECK_SEEN(Items(world.play()), {});
  InThread([&] { world.publisher.skip(MakeToken(1, 0, 0, 2), kDevice); }); // its ring is forgotten after this
  CHECK_SEEN(Items(world.play()), {});
  InThread([&] { world.publisher.skip(MakeToken(1, 0, 0, 0), kDevice); });
  InThread([&] { Close(world.publisher, 1, 0, {{0, 3}}); });
  ItemsUntil(world, 1);
  CHECK_EQ(world.ordered_seen, uint64_t{1});
  world.check_nothing_lost(1);
}

// Several threads' programs leave effects out at random, in domains, with rings that are full, or drop what finds no
// room, while the drain takes what comes.
void SkipAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest) {
  World world(when_full);
  world.gaps_allowed = true;
  std::atomic<uint64_t> attempts{0};
  std::vector<std::thread> producers;
  for (uint32_t thread = 1; thread <= threads; ++thread)
    producers.emplace_back([&, thread] {
      check::seed = seed;
      Random random(seed * 100 + thread);
      uint64_t mine = 0;
      for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        CHECK_EQ(world.drain.open(thread, 0), epoch);
        Program program(world, thread, epoch);
        for (uint64_t left = random.below(80); left > 0; --left) {
          const auto domain = static_cast<uint32_t>(random.below(3));
          if (random.one_in(3)) {
            program.record(random.below(largest), domain);
            ++mine;
          } else {
            program.skip(1 + random.below(6), domain);
          }
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

TEST(test_skips_of_several_threads) {
  SkipAndDrain(WhenFull::kWait, 1, 4, 60, 900);
  SkipAndDrain(WhenFull::kWait, 2, 3, 25, 30000);
  SkipAndDrain(WhenFull::kDrop, 3, 4, 60, 900);
}

// Devices of a region leave out what others do not: each device's effects come by (index, device), and the region ends.
TEST(test_skips_of_devices_in_a_region) {
  constexpr uint32_t kDevices = 4, kEffects = 300;
  constexpr uint32_t kPrograms = 6;
  WakeUp wake_up;
  Publisher publisher{wake_up};
  Sites sites;
  Replies replies;
  Drain drain{wake_up, publisher, sites, replies};
  publisher.ring_bytes = kSmallest;
  const auto at = [](uint32_t epoch, uint32_t phase, uint32_t index) {
    return Token{StreamOf(1, 0), epoch, phase, index};
  };
  const auto mark = [&](Kind kind, const Token &token, int32_t device, uint64_t devices) {
    const Span span{&token, sizeof token};
    CHECK(publisher.publish(kind, devices, token, device, &span, 1));
  };
  const auto is_shown = [](uint32_t device, uint32_t index) {
    return device == 0 ? false : device == 1 ? index % 7 == 0 : Random(index * kDevices + device).one_in(3);
  };
  for (uint32_t epoch = 0; epoch < kPrograms; ++epoch) CHECK_EQ(drain.open(1, 0), epoch);
  std::vector<std::thread> devices;
  for (uint32_t device = 0; device < kDevices; ++device)
    devices.emplace_back([&, device] {
      const auto mine = static_cast<int32_t>(device);
      for (uint32_t epoch = 0; epoch < kPrograms; ++epoch) {
        mark(Kind::kEnter, at(epoch, 1, 0), mine, kDevices);
        const uint32_t count = kEffects + 10 * device; // some come to more than others
        for (uint32_t index = 0; index < count; ++index) {
          const Token token = at(epoch, 1, index);
          const uint64_t payload = index;
          const Span span{&payload, sizeof payload};
          if (is_shown(device, index))
            CHECK(publisher.publish(Kind::kOrdered, kSite, token, mine, &span, 1));
          else
            publisher.skip(token, mine);
        }
        mark(Kind::kLeave, at(epoch, 1, count), mine, kDevices);
        mark(Kind::kClose, at(epoch, 2, 0), mine, kDevices);
      }
    });
  std::vector<std::string> seen, expected;
  for (size_t finished = 0; finished < kPrograms;) {
    const Batch batch = drain.next_batch(kPatience);
    for (const Item &item : batch.items)
      ForEachRecord(item, [&](const RecordHeader &header, const std::string &) {
        seen.push_back(std::to_string(header.token.epoch) + "." + std::to_string(header.token.index) + "@" +
                       std::to_string(header.device));
      });
    if (batch.has_run()) drain.resume(batch.run, batch.run_number);
    finished += batch.finished.size();
  }
  for (std::thread &device : devices) device.join();
  for (uint32_t epoch = 0; epoch < kPrograms; ++epoch)
    for (uint32_t index = 0; index < kEffects + 10 * kDevices; ++index)
      for (uint32_t device = 0; device < kDevices; ++device)
        if (index < kEffects + 10 * device && is_shown(device, index))
          expected.push_back(std::to_string(epoch) + "." + std::to_string(index) + "@" + std::to_string(device));
  CHECK(seen == expected);
}

// What devices have in common and one filter leaves out is skipped by each of them, as copies are.
TEST(test_copies_of_skips) {
  World world;
  world.gaps_allowed = true;
  CHECK_EQ(world.drain.open(1, 0), 0u);
  for (int device = 0; device < 3; ++device)
    InThread([&] {
      Program program(world, 1, 0);
      program.skip(5);
      program.close();
    });
  CHECK_SEEN(ItemsUntil(world, 1), {});
}

} // namespace
} // namespace effects::skips_test
