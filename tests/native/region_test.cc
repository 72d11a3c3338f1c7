// Per-device regions: whatever order records and markers arrive in, records leave by (phase, index, device).
#include "dispatch/native/order/release_order.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace effects::region_test {
namespace {

using check::MakeToken;
using check::Random;

Token At(uint32_t phase, uint32_t index, uint32_t domain = 0) {
  Token token = MakeToken(1, domain, 0, index);
  token.phase = phase;
  return token;
}

// What one device publishes.
struct Event {
  Kind kind;
  Token token;
  int32_t device;
  uint64_t devices = 0; // of a marker: how many publish theirs
  uint16_t flags = 0;
  uint32_t reply = 0;
  bool dropped = false;

  std::string name() const {
    return std::to_string(DomainOf(token)) + "." + std::to_string(token.phase) + "." + std::to_string(token.index) +
           (InRegion(token) ? "@" + std::to_string(device) : "");
  }
};

// A ReleaseOrder with one open program, and what left it.
class Play {
public:
  Play() { order.open({1, 0, 0}, 1); }

  bool deliver(const Event &event) {
    if (event.dropped) {
      order.accept_drop({event.token, 1, event.device});
      return true;
    }
    RecordHeader header{};
    header.kind = event.kind;
    header.token = event.token;
    header.device = event.device;
    header.site = IsMarker(event.kind) ? event.devices : 7;
    header.flags = event.flags;
    header.reply = event.reply;
    header.payload_size = sizeof(Token);
    const auto *bytes = reinterpret_cast<const std::byte *>(&event.token);
    const bool at_once = order.releasable(header);
    const size_t parked = order.parked_bytes();
    const bool wanted =
        order.accept(header, {bytes, sizeof(Token), nullptr}, [this](auto &&...args) { left(args...); });
    if (at_once) CHECK(order.parked_bytes() <= parked); // what is releasable costs no memory
    return wanted;
  }
  void enter(int32_t device, uint32_t phase, uint32_t entry, uint64_t devices, uint16_t flags = 0) {
    deliver({Kind::kEnter, At(phase, entry), device, devices, flags});
  }
  void leave(int32_t device, uint32_t phase, uint32_t last) { deliver({Kind::kLeave, At(phase, last), device}); }
  void record(int32_t device, uint32_t phase, uint32_t index, uint32_t reply = 0) {
    deliver({Kind::kOrdered, At(phase, index), device, 0, 0, reply});
  }
  void skip(int32_t device, uint32_t phase, uint32_t index, uint64_t count) {
    deliver({Kind::kSkip, At(phase, index), device, count});
  }
  void close(int32_t device, uint32_t phase, uint32_t index, uint64_t devices) {
    deliver({Kind::kClose, At(phase, index), device, devices});
  }
  void close(const Event &event, const Token (&finals)[2]) {
    RecordHeader header{};
    header.kind = Kind::kClose;
    header.token = finals[0];
    header.device = event.device;
    header.site = event.devices;
    header.payload_size = sizeof finals;
    order.accept(header, {reinterpret_cast<const std::byte *>(finals), sizeof finals, nullptr},
                 [](auto &&...) { CHECK(false); });
  }
  bool advance() {
    return order.advance([this](auto &&...args) { left(args...); }, finished);
  }
  void advance_to_the_end() {
    while (advance()) {
    }
  }
  std::vector<std::string> take() { return std::exchange(seen, {}); }

  ReleaseOrder order;
  std::vector<Finished> finished;

private:
  void left(const RecordHeader &header, const Payload &payload, const EpochInfo &) {
    CHECK(std::memcmp(payload.data, &header.token, sizeof(Token)) == 0);
    seen.push_back(Event{header.kind, header.token, header.device}.name());
  }
  std::vector<std::string> seen;
};

TEST(test_devices_take_turns) {
  Play play;
  play.enter(1, 1, 0, 2);
  play.record(1, 1, 0);
  CHECK_SEEN(play.take(), {}); // the other may be before it
  play.enter(0, 1, 0, 2);
  CHECK_SEEN(play.take(), {});
  play.record(0, 1, 0);
  CHECK_SEEN(play.take(), {"0.1.0@0", "0.1.0@1"});
  play.leave(0, 1, 1);
  play.record(1, 1, 1); // nobody is before it any more
  CHECK_SEEN(play.take(), {"0.1.1@1"});
  play.leave(1, 1, 2);
  for (int32_t device : {0, 1}) play.close(device, 2, 0, 2);
  play.advance_to_the_end();
  CHECK_EQ(play.finished.size(), size_t{1});
}

TEST(test_program_ends_when_all_its_devices_have_closed) {
  Play play;
  play.close(0, 0, 0, 3);
  play.close(2, 0, 0, 3);
  play.advance_to_the_end();
  CHECK(play.finished.empty());
  play.close(1, 0, 0, 3);
  play.advance_to_the_end();
  CHECK_EQ(play.finished.size(), size_t{1});
}

TEST(test_region_waits_for_what_comes_before) {
  Play play;
  play.enter(0, 1, 1, 1); // after one effect of the whole program
  play.record(0, 1, 0);
  play.leave(0, 1, 1);
  play.record(0, 2, 1);
  CHECK_SEEN(play.take(), {});
  play.record(0, 0, 0);
  CHECK_SEEN(play.take(), {"0.0.0", "0.1.0@0", "0.2.1"});
}

// A device that waits goes ahead of the others if told so, after all of its own; and next time without being told.
TEST(test_relaxed_region) {
  Play play;
  for (int32_t device : {0, 1}) play.enter(device, 1, 0, 2, kMayDiverge);
  play.record(1, 1, 0);
  play.record(1, 1, 1, /*reply=*/5);
  size_t stuck = 0;
  play.order.for_each_perhaps_stuck([&](uint32_t, uint64_t) { ++stuck; });
  CHECK_EQ(stuck, size_t{1});
  CHECK_SEEN(play.take(), {});
  play.order.relax(1);
  play.advance();
  CHECK_SEEN(play.take(), {"0.1.0@1", "0.1.1@1"});
  play.record(1, 1, 2); // for which nobody waits
  CHECK_SEEN(play.take(), {});
  play.record(0, 1, 0);
  play.leave(0, 1, 1);
  CHECK_SEEN(play.take(), {"0.1.0@0", "0.1.2@1"});
  play.leave(1, 1, 3);
  for (int32_t device : {0, 1}) play.enter(device, 3, 0, 2, kMayDiverge);
  play.record(1, 3, 0, /*reply=*/6);
  CHECK_SEEN(play.take(), {"0.3.0@1"});
}

// What is waited for passes what other devices have not published, and nothing that its own device has yet to publish.
TEST(test_relaxed_region_keeps_each_devices_own_order) {
  Play play;
  for (int32_t device : {0, 1}) play.enter(device, 1, 0, 2, kMayDiverge);
  play.record(1, 1, 0);
  play.record(1, 1, 2, /*reply=*/5); // ahead of the record before it, which another thread publishes
  play.order.relax(1);
  play.advance();
  CHECK_SEEN(play.take(), {});
  play.record(1, 1, 1);
  play.advance();
  CHECK_SEEN(play.take(), {"0.1.0@1", "0.1.1@1", "0.1.2@1"});
}

// Numbers that a device skips, several at a time, are not waited for.
TEST(test_devices_skip) {
  Play play;
  for (int32_t device : {0, 1}) play.enter(device, 1, 0, 2);
  for (uint32_t index : {0u, 1u, 2u, 3u}) play.record(0, 1, index);
  CHECK_SEEN(play.take(), {"0.1.0@0"});
  play.record(1, 1, 3);
  CHECK_SEEN(play.take(), {});
  play.skip(1, 1, 0, 3);
  play.advance();
  CHECK_SEEN(play.take(), {"0.1.1@0", "0.1.2@0", "0.1.3@0", "0.1.3@1"});
}

// What is waited for comes behind what its device has skipped.
TEST(test_relaxed_region_in_which_a_device_skips) {
  Play play;
  for (int32_t device : {0, 1}) play.enter(device, 1, 0, 2, kMayDiverge);
  play.record(1, 1, 0);
  play.skip(1, 1, 1, 3);
  play.record(1, 1, 4, /*reply=*/5);
  play.order.relax(1);
  play.advance();
  CHECK_SEEN(play.take(), {"0.1.0@1", "0.1.4@1"});
}

// A random program: stretches that all devices publish alike, and regions; each domain on its own.
std::vector<Event> RandomProgram(Random &random, uint32_t devices, uint32_t domain, bool with_drops,
                                 std::vector<std::string> &expected) {
  std::vector<Event> events;
  uint32_t phase = 0, index = 0;
  const auto everywhere = [&](Kind kind, const Token &token, uint16_t flags) {
    for (uint32_t device = 0; device < devices; ++device)
      events.push_back({kind, token, static_cast<int32_t>(device), devices, flags});
  };
  for (uint64_t part = random.below(5); part > 0; --part) {
    for (uint64_t n = random.below(3); n > 0; --n) {
      const Event event{Kind::kOrdered, At(phase, index++, domain), 0};
      const bool dropped = with_drops && random.below(4) == 0;
      if (dropped) {
        events.push_back(event);
        events.back().dropped = true;
        continue;
      }
      everywhere(Kind::kOrdered, event.token, kReplicated);
      expected.push_back(event.name());
    }
    if (random.below(3) == 0) continue;
    everywhere(Kind::kEnter, At(phase + 1, index, domain), 0);
    std::vector<std::pair<std::pair<uint32_t, uint32_t>, std::string>> inside;
    for (uint32_t device = 0; device < devices; ++device) {
      auto last = static_cast<uint32_t>(random.below(4));
      for (uint32_t i = 0; i < last; ++i) {
        if (random.below(5) == 0) {
          const auto count = static_cast<uint32_t>(1 + random.below(3));
          events.push_back({Kind::kSkip, At(phase + 1, i, domain), static_cast<int32_t>(device), count});
          i += count - 1;
          last = std::max(last, i + 1);
          continue;
        }
        Event event{Kind::kOrdered, At(phase + 1, i, domain), static_cast<int32_t>(device)};
        event.dropped = with_drops && random.below(4) == 0;
        if (!event.dropped) inside.push_back({{i, device}, event.name()});
        events.push_back(event);
      }
      events.push_back({Kind::kLeave, At(phase + 1, last, domain), static_cast<int32_t>(device)});
    }
    std::sort(inside.begin(), inside.end());
    for (auto &[place, name] : inside) expected.push_back(name);
    phase += 2;
  }
  events.push_back({Kind::kClose, At(phase, index, domain), 0, devices}); // the token of this domain at the end
  return events;
}

// Of two domains, delivered in any order.
TEST(test_random_deliveries_leave_by_place_and_device) {
  for (uint64_t seed = 1; seed <= check::Times(1000); ++seed) {
    check::seed = seed;
    Random random(seed);
    const auto devices = static_cast<uint32_t>(1 + random.below(4));
    const bool with_drops = random.below(3) == 0;
    std::vector<std::string> expected[2];
    std::vector<Event> events;
    Token finals[2];
    for (uint32_t domain = 0; domain < 2; ++domain) {
      auto program = RandomProgram(random, devices, domain, with_drops, expected[domain]);
      finals[domain] = program.back().token;
      program.pop_back();
      events.insert(events.end(), program.begin(), program.end());
    }
    for (uint32_t device = 0; device < devices; ++device)
      events.push_back({Kind::kClose, finals[0], static_cast<int32_t>(device), devices});
    for (size_t i = events.size(); i > 1; --i) std::swap(events[i - 1], events[random.below(i)]);

    Play play;
    std::vector<std::string> seen;
    for (const Event &event : events) {
      if (event.kind == Kind::kClose)
        play.close(event, finals);
      else
        play.deliver(event);
      if (random.below(3) == 0) play.advance();
      for (auto &one : play.take()) seen.push_back(one);
    }
    play.advance_to_the_end();
    for (auto &one : play.take()) seen.push_back(one);
    for (uint32_t domain = 0; domain < 2; ++domain) {
      std::vector<std::string> own;
      for (auto &one : seen)
        if (one[0] == static_cast<char>('0' + domain)) own.push_back(one);
      check::Strings(__FILE__, __LINE__, own, expected[domain]);
    }
    CHECK_EQ(play.finished.size(), size_t{1});
    CHECK_EQ(play.order.parked_bytes(), size_t{0});
  }
}

// A device that has failed is not waited for, in no region, but what it published leaves in its place.
TEST(test_lost_device) {
  Play play;
  for (int32_t device : {0, 1, 2}) play.enter(device, 1, 0, 3);
  play.record(1, 1, 0);
  play.record(1, 1, 1);
  play.record(2, 1, 0);
  for (uint32_t index : {0u, 1u, 2u}) play.record(0, 1, index);
  CHECK_SEEN(play.take(), {"0.1.0@0", "0.1.0@1", "0.1.0@2", "0.1.1@0", "0.1.1@1"}); // device 2 is next
  play.order.lose(1, 0, 2);
  CHECK(play.advance()); // what device 2 published may be in a ring that the scan has passed
  play.record(2, 1, 1);
  CHECK_SEEN(play.take(), {"0.1.1@2", "0.1.2@0"});
  play.record(0, 1, 3);
  play.record(1, 1, 2);
  CHECK_SEEN(play.take(), {"0.1.2@1"});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"0.1.3@0"});
  for (int32_t device : {0, 1}) play.leave(device, 1, device == 0 ? 4 : 3);
  // It does not come to the next region, of which nothing is known yet.
  play.deliver({Kind::kOrdered, At(2, 0), 0});
  CHECK_SEEN(play.take(), {"0.2.0"});
  play.enter(0, 3, 1, 3);
  play.record(0, 3, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {}); // device 1 may be before it
  play.enter(1, 3, 1, 3);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"0.3.0@0"});
  for (int32_t device : {0, 1}) play.leave(device, 3, device == 0 ? 1 : 0);
  play.advance_to_the_end();
  play.deliver({Kind::kOrdered, At(4, 1), 1});
  CHECK_SEEN(play.take(), {"0.4.1"});
  CHECK(play.finished.empty());
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_EQ(play.finished.size(), size_t{1});
}

// What a program published before it failed leaves in its order, whatever is missing.
TEST(test_failed_program) {
  for (uint64_t seed = 1; seed <= check::Times(500); ++seed) {
    check::seed = seed;
    Random random(seed);
    std::vector<std::string> expected, present;
    auto events = RandomProgram(random, 3, 0, /*with_drops=*/false, expected);
    events.pop_back();
    for (size_t i = events.size(); i > 1; --i) std::swap(events[i - 1], events[random.below(i)]);
    events.resize(random.below(events.size() + 1));
    Play play;
    std::vector<std::string> seen;
    for (const Event &event : events) {
      play.deliver(event);
      for (auto &one : play.take()) seen.push_back(one);
      if (event.kind == Kind::kOrdered) present.push_back(event.name());
    }
    play.order.fail(1, 0);
    play.advance_to_the_end();
    for (auto &one : play.take()) seen.push_back(one);
    std::vector<std::string> wanted; // whatever any device has published
    for (auto &one : expected)
      if (std::find(present.begin(), present.end(), one) != present.end()) wanted.push_back(one);
    check::Strings(__FILE__, __LINE__, seen, wanted);
    CHECK_EQ(play.finished.size(), size_t{1});
    CHECK_EQ(play.order.parked_bytes(), size_t{0});
  }
}

// What comes when a later record of the failed program has left does not leave any more.
TEST(test_failed_program_does_not_go_back) {
  Play play;
  play.deliver({Kind::kOrdered, At(0, 0, 7), 0});
  const uint64_t run = play.order.suspend(1, 7); // a function, which keeps the program open
  play.deliver({Kind::kOrdered, At(0, 1, 7), 0});
  play.deliver({Kind::kOrdered, At(2, 0), 0}); // behind a region of which nothing is here
  CHECK_SEEN(play.take(), {"7.0.0"});
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"0.2.0"});
  play.record(0, 1, 0);
  play.order.resume(1, run);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"7.0.1"});
  CHECK_EQ(play.finished.size(), size_t{1});
}

} // namespace
} // namespace effects::region_test
