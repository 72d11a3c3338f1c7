// Programs on a GPU publish the records that they would on a CPU: each runs with handlers of a CPU, and with those of
// CUDA, by host functions and by the kernel.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_world.h"
#include "dispatch/native/xla/runtime.h"

namespace effects::cuda_test {
namespace {

constexpr int64_t kOrderedTrait = kRecordIsOrdered;
constexpr On kAll[] = {On::kCpu, On::kCudaWithoutKernel, On::kCuda};

// Unordered records may come ahead of what is published beside them: they are compared apart, behind the others.
std::vector<std::string> UnorderedLast(std::vector<std::string> seen) {
  std::stable_partition(seen.begin(), seen.end(),
                        [](const std::string &one) { return one.find(" kind 2 ") == std::string::npos; });
  return seen;
}

// Runs a program, one body for each device, with all kinds of handlers, and compares what comes of it. Returns that.
using Body = std::function<void(OnDevice &)>;
std::vector<std::string> Compare(const std::vector<Body> &bodies) {
  std::vector<std::string> seen[3];
  for (On on : kAll) {
    const uint32_t thread = 1 + static_cast<uint32_t>(on);
    const uint32_t epoch = drain().open(thread, 0);
    std::vector<std::unique_ptr<OnDevice>> devices;
    std::vector<std::function<void()>> programs;
    for (size_t i = 0; i < bodies.size(); ++i) {
      devices.push_back(std::make_unique<OnDevice>(on, thread, epoch, static_cast<int32_t>(i)));
      programs.push_back([&body = bodies[i], &device = *devices.back()] { body(device); });
    }
    seen[static_cast<int>(on)] = UnorderedLast(Play(programs, 1));
  }
  CHECK(!seen[0].empty());
  check::Strings(__FILE__, __LINE__, seen[1], seen[0]);
  check::Strings(__FILE__, __LINE__, seen[2], seen[0]);
  CHECK_SEEN({StandIn_Complaints()}, {""});
  return seen[1];
}

// Of one device: operands of several sizes, none, and one that is too large for the ring; without an order too; the
// last record ends the program.
TEST(test_records_are_those_of_a_cpu) {
  const std::vector<std::string> seen = Compare({[](OnDevice &device) {
    CHECK(device.record(11, kOrderedTrait, {Ints({1})}).empty());
    CHECK(device.record(12, kOrderedTrait, {Ints({}), RawBytes(5), Ints({2, 3})}).empty());
    CHECK(device.record(13, 0, {Ints({4})}).empty());
    CHECK(device.record(14, kOrderedTrait, {}).empty());
    CHECK(device.record(15, kOrderedTrait | kRecordIsCallback, {RawBytes(400000)}).empty());
    CHECK(device.record(16, kOrderedTrait | kRecordCloses, {Ints({5})}).empty());
  }});
  CHECK_EQ(seen.size(), size_t{6});
}

// The results of a callback come to the device, and what follows is recorded after it.
TEST(test_calls_are_answered) {
  const std::vector<std::string> seen = Compare({[](OnDevice &device) {
    for (int64_t traits : {kOrderedTrait | kRecordIsCallback, int64_t{kRecordIsCallback}}) {
      device.results[0] = Ints({0, 0});
      CHECK(device.call(21, traits, {Ints({1}), Ints({})}).empty());
      CHECK(device.results[0].bytes == Ints({7, 8}).bytes);
      CHECK(device.record(22, kOrderedTrait, {Ints({2})}).empty());
    }
    CHECK(device.close().empty());
  }});
  CHECK_EQ(seen.size(), size_t{4});
}

// Devices count for themselves in a region, which begins and ends with a call of its own, or with its records.
TEST(test_regions_are_those_of_a_cpu) {
  const auto each = [](OnDevice &device) {
    const DeviceToken around = device.token;
    CHECK(device.enter(2).empty());
    for (int i = 0; i < 3; ++i) {
      CHECK(device.record(31, kOrderedTrait, {Ints({i})}).empty());
      CHECK(device.skip(2).empty());
    }
    CHECK(device.leave(around).empty());
    const DeviceToken again = device.token;
    CHECK(device.record(32, kOrderedTrait | kRecordEnters, {Ints({4})}, 2).empty());
    CHECK(device.last_record(33, kOrderedTrait | kRecordLeaves, again, {Ints({5})}).empty());
    CHECK(device.record(34, kOrderedTrait | kRecordEnters | kRecordLeaves, {Ints({6})}, 2).empty());
    CHECK(device.close(2).empty());
  };
  CHECK_EQ(Compare({each, each}).size(), size_t{12});
}

// Of replicas the primary one publishes.
TEST(test_replicas_are_those_of_a_cpu) {
  const auto each = [](uint32_t replica) {
    return [replica](OnDevice &device) {
      const DeviceToken around = device.token;
      CHECK(device.enter(1, true, replica).empty());
      // Without padding, whose bytes are any in a ring that was used before.
      CHECK(device.record(41, kOrderedTrait, {Ints({1, 2})}).empty());
      CHECK(device.skip(3).empty());
      CHECK(device.call(42, kOrderedTrait | kRecordIsCallback, {}, 2).empty());
      CHECK(device.results[0].bytes == Ints({7, 8}).bytes);
      CHECK(device.leave(around).empty());
      CHECK(device.close(2).empty());
    };
  };
  CHECK_EQ(Compare({each(0), each(1)}).size(), size_t{2});
}

// What all devices have is kept once; shards of a whole become one record, and shards by themselves each one.
TEST(test_shards_are_those_of_a_cpu) {
  const auto each = [](int32_t device_number) {
    return [device_number](OnDevice &device) {
      constexpr int64_t kShards = kOrderedTrait | kRecordHasShards;
      CHECK(device.record(51, kOrderedTrait | kRecordIsReplicated, {Ints({1})}, 2).empty());
      // Two of four numbers each: how many devices copy, and whether this one does, from where to where, and how many.
      const Value row = Ints({2, 1, 2 * device_number, 2 * device_number + 2, 4});
      CHECK(
          device.record(52, kShards | kRecordIsReplicated, {row, Ints({10 * device_number, 10 * device_number + 1})}, 2)
              .empty());
      // Whether it is the first with these shards, and what its record begins with.
      const Value own = Ints({1, 2, 2 * device_number, 2 * device_number + 2, 4});
      CHECK(device.record(53, kShards | kRecordEnters | kRecordLeaves, {own, Ints({3, 4})}, 2).empty());
      CHECK(device.close(2).empty());
    };
  };
  CHECK_EQ(Compare({each(0), each(1)}).size(), size_t{4});
}

// Programs that JAX dispatches have records too. Their epochs go on, so that each kind of handlers is looked at alone.
TEST(test_plain_records) {
  std::vector<std::string> seen[3];
  for (On on : kAll) {
    OnDevice device(on, 1, 0);
    const auto body = [&] {
      CHECK(device.plain(61, kOrderedTrait, {Ints({1})}).empty());
      CHECK(device.plain(62, 0, {Ints({}), Ints({2})}).empty());
      CHECK(device.plain_call(63, kOrderedTrait | kRecordIsCallback, {Ints({3})}).empty());
      CHECK(device.results[0].bytes == Ints({7, 8}).bytes);
    };
    for (std::string line : Play({body}, 3))
      seen[static_cast<int>(on)].push_back(line.substr(0, line.find(" at")) + line.substr(line.find(" bytes")));
  }
  CHECK_EQ(seen[0].size(), size_t{3});
  check::Strings(__FILE__, __LINE__, seen[1], seen[0]);
  check::Strings(__FILE__, __LINE__, seen[2], seen[0]);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

} // namespace
} // namespace effects::cuda_test
