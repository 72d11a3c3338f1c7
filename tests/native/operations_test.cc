// Asynchronous operations: what is kept is given back once, and what is sent reaches the device that waits for it.
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "extensions/asynchronous/native/operations.h"

namespace effects::operations_test {
namespace {

constexpr Program kProgram{1, 7};

Span SpanOf(const std::vector<int32_t> &values) { return {values.data(), values.size() * sizeof(int32_t)}; }

// Takes the results of an operation, and waits for them.
struct Taken {
  explicit Taken(size_t count) : values(count, -1) {}
  Out out() { return {values.data(), values.size() * sizeof(int32_t)}; }
  Operations::Done done() {
    return [this](const std::string &error) {
      std::lock_guard lock(mutex);
      this->error = error;
      has_come = true;
      came.notify_all();
    };
  }
  void wait() {
    std::unique_lock lock(mutex);
    came.wait(lock, [&] { return has_come; });
  }
  std::vector<int32_t> values;
  std::string error;
  bool has_come = false;
  std::mutex mutex;
  std::condition_variable came;
};

// Values are copied when they are kept, and given back once; a number that is not known is an error at once.
TEST(test_what_is_kept_is_given_back_once) {
  Operations operations;
  std::vector<int32_t> value{1, 2, 3};
  const Span span = SpanOf(value);
  const uint32_t number = operations.keep(kProgram, 0, &span, 1, 1);
  value = {0, 0, 0};
  Taken first(3), again(3), other_size(2);
  operations.take(kProgram, 0, number, 0, {first.out()}, first.done());
  CHECK(first.has_come && first.error.empty());
  CHECK((first.values == std::vector<int32_t>{1, 2, 3}));
  operations.take(kProgram, 0, number, 0, {again.out()}, again.done());
  CHECK(again.has_come && !again.error.empty());
  const uint32_t next = operations.keep(kProgram, 0, &span, 1, 1);
  CHECK(next != number);
  operations.take(kProgram, 0, next, 0, {other_size.out()}, other_size.done());
  CHECK(!other_size.error.empty());
}

// Each lane is given back by itself, in any order.
TEST(test_lanes_are_given_back_by_themselves) {
  Operations operations;
  const std::vector<int32_t> value{1, 2, 3, 4};
  const Span span = SpanOf(value);
  const uint32_t number = operations.keep(kProgram, 0, &span, 1, 2);
  Taken second(2), first(2), none(2);
  operations.take(kProgram, 0, number, 1, {second.out()}, second.done());
  operations.take(kProgram, 0, number, 0, {first.out()}, first.done());
  CHECK((first.values == std::vector<int32_t>{1, 2}));
  CHECK((second.values == std::vector<int32_t>{3, 4}));
  operations.take(kProgram, 0, number, 0, {none.out()}, none.done());
  CHECK(!none.error.empty());
}

// Each device counts for itself, and replicated operations apart: in those all devices have the same numbers.
TEST(test_devices_have_the_same_numbers) {
  Operations operations;
  CHECK(operations.start(kProgram, 0, false) == 1);
  CHECK(operations.start(kProgram, 0, false) == 2);
  CHECK(operations.start(kProgram, 1, false) == 1);
  CHECK(operations.start({1, 8}, 0, false) == 1);
  CHECK(operations.start(kProgram, 0, true) == 1);
  CHECK(operations.start(kProgram, 0, true) == 2);
  CHECK(operations.start(kProgram, 1, true) == 1);
  CHECK(operations.started(kProgram, 0) == 2u);
  CHECK(operations.started(kProgram, 1) == 1u);
  CHECK(operations.started(kProgram, kAllDevices) == 2u);
}

// A part waits for the device that wants it, and a device for its part. The second time is another exchange.
TEST(test_what_is_sent_is_received) {
  Operations operations;
  for (int32_t round = 0; round < 2; ++round) {
    const std::vector<int32_t> from_0{10 + round}, from_1{20 + round};
    const uint32_t at_0 = operations.post(kProgram, 0, {5, 0, 0, {{1, {SpanOf(from_0)}}}, {1}});
    Taken early(1);
    operations.take(kProgram, 0, at_0, 0, {early.out()}, early.done());
    CHECK(!early.has_come);
    const uint32_t at_1 = operations.post(kProgram, 1, {5, 0, 1, {{0, {SpanOf(from_1)}}}, {0}});
    early.wait();
    CHECK(early.error.empty() && early.values[0] == 20 + round);
    Taken late(1);
    operations.take(kProgram, 1, at_1, 0, {late.out()}, late.done());
    CHECK(late.has_come && late.values[0] == 10 + round);
  }
  CHECK(operations.end(kProgram) == 0);
}

// Groups know nothing of each other, and who gets nothing gets zeros.
TEST(test_groups_are_apart) {
  Operations operations;
  const std::vector<int32_t> value{1};
  operations.post(kProgram, 0, {5, 0, 0, {{1, {SpanOf(value)}}}, {}});
  const uint32_t other_group = operations.post(kProgram, 2, {5, 1, 1, {}, {}});
  Taken nothing(1);
  operations.take(kProgram, 2, other_group, 0, {nothing.out()}, nothing.done());
  CHECK(nothing.has_come && nothing.values[0] == 0);
}

// A program that fails fails what waits, and what comes to wait; one that ends says what was not done.
TEST(test_the_end_of_a_program) {
  Operations operations;
  const uint32_t waits = operations.post(kProgram, 0, {5, 0, 0, {}, {1}});
  const uint32_t comes = operations.post(kProgram, 0, {5, 0, 0, {}, {1}});
  Taken first(1), second(1);
  operations.take(kProgram, 0, waits, 0, {first.out()}, first.done());
  operations.fail(kProgram, "why");
  first.wait();
  CHECK(first.error == "why");
  operations.take(kProgram, 0, comes, 0, {second.out()}, second.done());
  CHECK(second.error == "why");
  CHECK(operations.any());
  CHECK(!operations.end(kProgram)); // it has failed
  CHECK(!operations.any());
  const std::vector<int32_t> value{1};
  const Span span = SpanOf(value);
  operations.keep(kProgram, 0, &span, 1, 1);
  CHECK(operations.end(kProgram) == 1);
  CHECK(operations.end(kProgram) == 0);
}

// Devices in threads of their own pass values around a ring.
TEST(test_a_ring_of_threads) {
  constexpr uint32_t kDevices = 8;
  constexpr int32_t kRounds = 200;
  Operations operations;
  std::vector<std::thread> devices;
  std::vector<int32_t> last(kDevices);
  for (uint32_t rank = 0; rank < kDevices; ++rank)
    devices.emplace_back([&, rank] {
      int32_t value = static_cast<int32_t>(rank);
      for (int32_t round = 0; round < kRounds; ++round) {
        const Span span{&value, sizeof value};
        const uint32_t number =
            operations.post(kProgram, static_cast<int32_t>(rank),
                            {3, 0, rank, {{(rank + 1) % kDevices, {span}}}, {(rank + kDevices - 1) % kDevices}});
        Taken taken(1);
        operations.take(kProgram, static_cast<int32_t>(rank), number, 0, {taken.out()}, taken.done());
        taken.wait();
        value = taken.values[0] + 1;
      }
      last[rank] = value;
    });
  for (std::thread &device : devices) device.join();
  for (uint32_t rank = 0; rank < kDevices; ++rank) // round the ring as often as there are devices in the rounds
    CHECK(last[rank] == static_cast<int32_t>((rank + kDevices - kRounds % kDevices) % kDevices) + kRounds);
  CHECK(operations.end(kProgram) == 0);
}

} // namespace
} // namespace effects::operations_test
