// Full rings where devices count for themselves: markers are never lost, and each device's gaps are its own.
#include <string>
#include <vector>

#include "world.h"

namespace effects::full_ring_test {
namespace {

// A program of one epoch over devices, in a region. What leaves the drain is noted as "index@device".
class Devices {
public:
  explicit Devices(WhenFull when_full) {
    publisher.when_full = when_full;
    publisher.ring_bytes = kSmallest;
    wake_up.begin_barrier(false); // the drain does not pace itself
    drain.open(1, 0);
  }
  // A marker, with a token for each of so many domains. Those after the first have no records.
  void mark(Kind kind, int32_t device, uint32_t index, uint32_t domains = 1, uint64_t devices = 2) {
    std::vector<Token> tokens;
    for (uint32_t domain = 0; domain < domains; ++domain)
      tokens.push_back(at(kind == Kind::kClose ? 2 : 1, domain == 0 ? index : 0, domain));
    const Span span{tokens.data(), tokens.size() * sizeof(Token)};
    CHECK(publisher.publish(kind, devices, tokens[0], device, &span, 1));
  }
  bool record(int32_t device, uint32_t index, size_t size = 8, uint32_t phase = 1) {
    const std::string bytes(size, 'x');
    const Span span{bytes.data(), bytes.size()};
    return publisher.publish(Kind::kOrdered, kSite, at(phase, index, 0), device, &span, 1);
  }
  // Unordered records of another stream, until one as large as the others finds the ring full.
  void fill() {
    const uint64_t bytes = 0;
    const Span span{&bytes, sizeof bytes};
    while (publisher.publish(Kind::kUnordered, kSite, check::MakeToken(2, 0, 0, 0), 0, &span, 1)) {
    }
  }
  // Drains until the program has ended. A program that does not is never left: the test's time is limited.
  std::vector<std::string> until_finished() {
    std::vector<std::string> seen;
    for (bool finished = false; !finished;) {
      const Batch batch = drain.next_batch(kPatience);
      for (const Item &item : batch.items)
        ForEachRecord(item, [&](const RecordHeader &header, const std::string &) {
          if (header.kind == Kind::kOrdered)
            seen.push_back(std::to_string(header.token.index) + "@" + std::to_string(header.device));
        });
      if (batch.has_run()) drain.resume(batch.run, batch.run_number);
      for (const Finished &one : batch.finished) finished = finished || one.thread == 1;
    }
    return seen;
  }

  WakeUp wake_up;
  Publisher publisher{wake_up};
  Sites sites;
  Replies replies;
  Drain drain{wake_up, publisher, sites, replies};

private:
  static Token at(uint32_t phase, uint32_t index, uint32_t domain) {
    Token token = check::MakeToken(1, domain, 0, index);
    token.phase = phase;
    return token;
  }
};

constexpr WhenFull kModes[] = {WhenFull::kWait, WhenFull::kDrop};

// Markers that find a ring full are kept beside it, small ones and ones too large for the ring. So a region is entered
// and left, its program ends, and what of its records is not there was counted as dropped.
TEST(test_region_markers_outlive_a_full_ring) {
  for (const WhenFull when_full : kModes)
    for (const uint32_t domains : {1u, 200u})
      for (const bool full_before : {false, true}) {
        Devices devices(when_full);
        constexpr uint32_t kRecords = 60;
        std::vector<std::thread> producers;
        for (const int32_t device : {0, 1})
          producers.emplace_back([&, device] {
            if (full_before && when_full != WhenFull::kWait)
              for (uint32_t i = 0; i < kRecords; ++i)
                Publish(devices.publisher, Kind::kUnordered, check::MakeToken(2, 0, 0, 0), 64);
            devices.mark(Kind::kEnter, device, 0, domains);
            for (uint32_t index = 0; index < kRecords; ++index) devices.record(device, index, 64);
            devices.mark(Kind::kLeave, device, kRecords, domains);
            devices.mark(Kind::kClose, device, 0, domains);
          });
        if (when_full != WhenFull::kWait)
          for (std::thread &producer : producers) producer.join(); // nothing is drained before all is published
        const std::vector<std::string> seen = devices.until_finished();
        for (std::thread &producer : producers)
          if (producer.joinable()) producer.join();
        const uint64_t dropped = devices.publisher.stats.dropped.load();
        if (when_full == WhenFull::kWait) {
          CHECK_EQ(dropped, uint64_t{0});
          CHECK_EQ(seen.size(), size_t{2 * kRecords});
        } else {
          CHECK(dropped > 0 && seen.size() < size_t{2 * kRecords});
          if (!full_before) CHECK_EQ(seen.size() + dropped, size_t{2 * kRecords});
        }
        for (size_t i = 1; i < seen.size(); ++i) { // by index, and then by device
          const auto place = [](const std::string &name) { return 2 * std::stoi(name) + (name.back() - '0'); };
          CHECK(place(seen[i - 1]) < place(seen[i]));
        }
      }
}

// One of the runtime's threads publishes for two devices, and drops two records that follow each other by their
// numbers. They are gaps of two devices: taken for one gap of the first, the second would be waited for for ever.
TEST(test_adjacent_drops_of_two_devices_are_two) {
  Devices devices(WhenFull::kDrop);
  InThread([&] {
    for (const int32_t device : {0, 1}) devices.mark(Kind::kEnter, device, 0);
    for (uint32_t index = 0; index < 2; ++index) CHECK(devices.record(0, index));
    for (uint32_t index = 0; index < 3; ++index) CHECK(devices.record(1, index));
    devices.fill();
    CHECK(!devices.record(0, 2));
    CHECK(!devices.record(1, 3));
    for (const int32_t device : {0, 1}) devices.mark(Kind::kLeave, device, device == 0 ? 3 : 4);
    for (const int32_t device : {0, 1}) devices.mark(Kind::kClose, device, 0);
  });
  CHECK_SEEN(devices.until_finished(), {"0@0", "0@1", "1@0", "1@1", "2@1"});
}

// A region's last record and the first one behind it, whose numbers follow each other, are of two phases.
TEST(test_adjacent_drops_of_two_phases_are_two) {
  Devices devices(WhenFull::kDrop);
  InThread([&] {
    for (uint32_t index = 0; index < 3; ++index) CHECK(devices.record(0, index, 8, /*phase=*/0));
    devices.mark(Kind::kEnter, 0, 3, 1, /*devices=*/1);
    for (uint32_t index = 0; index < 2; ++index) CHECK(devices.record(0, index));
    devices.fill();
    CHECK(!devices.record(0, 2));
    devices.mark(Kind::kLeave, 0, 3, 1, 1);
    CHECK(!devices.record(0, 3, 8, /*phase=*/2));
    devices.mark(Kind::kClose, 0, 4, 1, 1);
  });
  CHECK_SEEN(devices.until_finished(), {"0@0", "1@0", "2@0", "0@0", "1@0"});
}

// The last record of a program and the second one of the next.
TEST(test_adjacent_drops_of_two_programs_are_two) {
  World world(WhenFull::kDrop);
  world.wake_up.begin_barrier(false); // the drain does not pace itself
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  const auto record = [&](uint32_t epoch, uint32_t index) {
    return Publish(world.publisher, Kind::kOrdered, check::MakeToken(1, 0, epoch, index), 8);
  };
  InThread([&] {
    CHECK(record(1, 0));
    while (Publish(world.publisher, Kind::kUnordered, check::MakeToken(1, 0, 0, 0), 8)) {
    }
    CHECK(!record(0, 0));
    Close(world.publisher, 1, 0, {{0, 1}});
    CHECK(!record(1, 1));
    Close(world.publisher, 1, 1, {{0, 2}});
  });
  world.until_finished(2);
  CHECK_EQ(world.ordered_seen, uint64_t{1});
}

// What travels beside the ring is bounded, and counts no more once it has left: batch after batch is admitted.
TEST(test_large_records_leave_room_behind) {
  World world(WhenFull::kDrop);
  world.wake_up.begin_barrier(false); // the drain does not pace itself
  constexpr uint32_t kEpochs = 20;
  for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    world.drain.open(1, 0);
    InThread([&] {
      PlayedProgram program(world.publisher, 1, epoch);
      for (int i = 0; i < 3; ++i) program.record(4000);
      program.close();
    });
    world.until_finished(epoch + 1);
  }
  CHECK_EQ(world.publisher.stats.dropped.load(), uint64_t{0});
  world.check_nothing_lost(3 * kEpochs);
}

} // namespace
} // namespace effects::full_ring_test
