// Records that a kernel brings to the host: no stream stands still for them.
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_world.h"
#include "dispatch/native/xla/host_failures.h"
#include "dispatch/native/xla/runtime.h"
#include "extensions/cuda/native/arrivals.h"
#include "extensions/cuda/native/driver.h"
#include "extensions/cuda/native/launch.h"

namespace effects::cuda_arrivals_test {
namespace {

constexpr int64_t kOrderedTrait = kRecordIsOrdered;

// Launches that are no program's.
class Launches {
public:
  explicit Launches(OnDevice &device) : stream_(static_cast<cuda::Stream>(device.stream)) {}

  // Puts a copy of `bytes` into the stream, which `seen` gets when it has come.
  void launch(const std::string &bytes) {
    const uint64_t address = StandIn_Allocate(bytes.size());
    std::memcpy(StandIn_Memory(address), bytes.data(), bytes.size());
    const Span span{reinterpret_cast<void *>(address), bytes.size()};
    const cuda::InContextOf context(cuda::driver(), stream_);
    cuda::Launch(cuda::driver(), stream_, &span, 1, [this, kept = kept_](Span *operands, size_t) {
      const std::string come(static_cast<const char *>(operands[0].data), operands[0].size);
      seen.push_back(come.substr(0, 8) + come.substr(come.size() - 1));
      ++come_;
    });
  }
  // Waits until so many have come.
  void wait(int count) {
    while (come_ < count) std::this_thread::yield();
  }
  // Waits until what has not come is dropped.
  void wait_for_the_end() {
    const std::weak_ptr<int> kept = std::exchange(kept_, nullptr);
    while (!kept.expired()) std::this_thread::yield();
  }

  std::vector<std::string> seen; // by the thread that publishes, and read once they have come

private:
  const cuda::Stream stream_;
  std::atomic<int> come_{0};
  std::shared_ptr<int> kept_ = std::make_shared<int>(); // by each launch too
};

// Nothing comes while the stream stands still, and all of it comes in order then, of all sizes, with no host function.
TEST(test_arrivals_come_in_order) {
  OnDevice device(On::kCuda, 1, 0);
  Launches launches(device);
  StandIn_Hold(device.stream);
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const size_t size = i % 3 == 0   ? 9
                        : i % 3 == 1 ? 16384
                                     : 16385 + i; // what the kernel copies, and what the driver does
    std::string bytes =
        std::to_string(100000000 + i).substr(1) + std::string(size - 8, static_cast<char>('a' + i % 26));
    expected.push_back(bytes.substr(0, 8) + bytes.back());
    launches.launch(bytes);
  }
  CHECK(launches.seen.empty());
  StandIn_LetGo(device.stream);
  launches.wait(300);
  check::Strings(__FILE__, __LINE__, launches.seen, expected);
  CHECK_EQ(StandIn_Calls("cuLaunchKernel"), 300);
  CHECK_EQ(StandIn_Calls("cuModuleLoadData"), 1);
  CHECK_EQ(StandIn_Calls("cuLaunchHostFunc"), 0);
  CHECK_EQ(StandIn_Calls("cuMemcpyDtoHAsync_v2"), 100);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Of two streams that one thread launches into, the second waits for the first. What it brings is published after that.
TEST(test_arrivals_of_streams_that_wait_for_each_other) {
  OnDevice one(On::kCuda, 1, 0), other(On::kCuda, 1, 0);
  static auto &all = *new cuda::Arrivals; // whose thread goes on
  auto *first = static_cast<cuda::Stream>(one.stream), *second = static_cast<cuda::Stream>(other.stream);
  if (second < first) std::swap(first, second); // as they are looked at
  std::vector<int> seen;
  std::atomic<int> come{0};
  const auto add = [&](cuda::Stream stream, int number) {
    const cuda::InContextOf context(cuda::driver(), stream);
    cuda::Arrival arrival;
    arrival.slot = cuda::pinned_pool().take(cuda::driver(), 64);
    auto *const flag = new (arrival.slot.data()) std::atomic<uint32_t>(0);
    arrival.publish = [&, number](Span *, size_t) {
      seen.push_back(number);
      ++come;
    };
    all.add(cuda::driver(), stream, arrival);
    return flag;
  };
  std::vector<int> expected;
  for (int round = 0; round < 3000; ++round) {
    std::atomic<uint32_t> *const ahead = add(first, 2 * round), *const behind = add(second, 2 * round + 1);
    for (int i = 0; i < round % 64; ++i) std::atomic_signal_fence(std::memory_order_seq_cst); // at another time each
    ahead->store(1, std::memory_order_release);
    behind->store(1, std::memory_order_release);
    while (come < 2 * round + 2) std::this_thread::yield();
    expected.insert(expected.end(), {2 * round, 2 * round + 1});
  }
  CHECK(seen == expected);
  all.stop();
}

// Operands beyond those that the kernel takes, and some without bytes.
TEST(test_arrivals_with_many_operands) {
  OnDevice cpu(On::kCpu, 2, drain().open(2, 0)), device(On::kCuda, 1, drain().open(1, 0));
  std::vector<Value> operands;
  for (int32_t i = 0; i < 12; ++i)
    operands.push_back(i % 4 == 3 ? RawBytes(0) : i % 4 == 1 ? RawBytes(5) : Ints({i, i}));
  std::vector<std::string> seen[2];
  for (OnDevice *each : {&cpu, &device})
    seen[each == &device] = Play({[&] {
                                   CHECK(each->record(11, kOrderedTrait, operands).empty());
                                   CHECK(each->close().empty());
                                 }},
                                 1);
  CHECK_EQ(seen[0].size(), size_t{1});
  check::Strings(__FILE__, __LINE__, seen[1], seen[0]);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Whatever the driver fails at, the handler's error says so. Nothing comes of the launch, and the next is as any other.
TEST(test_errors_of_the_kernel) {
  OnDevice device(On::kCuda, 1, drain().open(1, 0));
  Launching launching(device);
  StandIn_FailCall("cuLaunchKernel", 0, 700);
  const std::string error = launching.record(device.token.token, 1);
  CHECK(error.find("`cuLaunchKernel` failed with CUDA_ERROR_ILLEGAL_ADDRESS") != error.npos);
  CHECK_EQ(StandIn_Contexts(), 0);
  device.synchronize();
  CHECK_EQ(publisher().count_published().records, uint64_t{0});
  CHECK(launching.record(device.token.token, 2).empty());
  ++device.token.token.index;
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{1});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Where the driver cannot make the kernel, host functions are used, and one warning for each device says so.
TEST(test_kernel_that_cannot_be_loaded) {
  OnDevice one(On::kCuda, 1, 0), other(On::kCuda, 1, 0);
  int host_functions = 0;
  for (const char *function : {"cuModuleLoadData", "cuModuleGetFunction"}) {
    Launches launches(host_functions == 0 ? one : other);
    StandIn_FailCall(function, 0, 221);
    for (int i = 1; i <= 3; ++i) {
      launches.launch("anything");
      launches.wait(i);
      CHECK_EQ(StandIn_Calls("cuLaunchHostFunc"), ++host_functions);
    }
    CHECK(host_failures().any());
    const std::vector<std::string> warnings = host_failures().take_warnings();
    CHECK_EQ(warnings.size(), size_t{1});
    CHECK(warnings[0].find("`" + std::string(function) + "` failed with error 221") != std::string::npos);
    CHECK(!host_failures().any());
    CHECK_EQ(StandIn_Contexts(), 0);
  }
  CHECK_EQ(StandIn_Calls("cuModuleLoadData"), 2);
  CHECK_EQ(StandIn_Calls("cuLaunchKernel"), 0);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// What a launch needs of the driver beside the launch is there before the program begins.
TEST(test_launches_are_prepared_for) {
  OnDevice device(On::kCuda, 1, drain().open(1, 0));
  Launching launching(device);
  const auto needed = [] { return StandIn_Calls("cuModuleLoadData") + StandIn_Calls("cuMemHostAlloc"); };
  StandIn_FailCall("cuMemHostAlloc", 0, 2);
  CHECK(launching.prepare(device.token.token, 1).empty()); // the launch says what fails at its line
  CHECK_EQ(StandIn_Contexts(), 0);
  const int before = needed();
  CHECK(launching.prepare(device.token.token, 1).empty());
  CHECK(launching.prepare(device.token.token, 1).empty());
  CHECK_EQ(needed(), before + 1);
  CHECK(launching.record(device.token.token, 1).empty());
  CHECK_EQ(needed(), before + 1);
  ++device.token.token.index;
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{1});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// What is in a stream that has failed never comes, and holds up no other stream, nor its memory those that launch.
TEST(test_streams_that_fail) {
  OnDevice device(On::kCuda, 1, 0), other(On::kCuda, 1, 0);
  Launches lost(device), launches(other);
  StandIn_Hold(device.stream);
  const std::string large(size_t{1} << 23, 'x');
  for (int i = 0; i < 7; ++i) lost.launch(large);
  StandIn_FailStream(device.stream, 700);
  for (int i = 0; i < 7; ++i) launches.launch(large);
  launches.wait(7);
  lost.wait_for_the_end();
  CHECK_EQ(lost.seen.size(), size_t{0});
  StandIn_LetGo(device.stream);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

constexpr On kBothWays[] = {On::kCudaWithoutKernel, On::kCuda};
const std::string kLarge((size_t{1} << 23) + 8, 'x'); // 64 MiB hold 7 of these

// Who launches far ahead of the device waits, and goes on when what was launched has come.
TEST(test_launches_wait_for_room) {
  for (On on : kBothWays) {
    OnDevice device(on, 1, 0);
    Launches launches(device);
    StandIn_Hold(device.stream);
    std::atomic<int> launched{0};
    std::thread thread([&] {
      for (int i = 0; i < 12; ++i) {
        launches.launch(kLarge);
        ++launched;
      }
    });
    while (launched < 7) std::this_thread::yield();
    CHECK_EQ(launched, 7);
    StandIn_LetGo(device.stream);
    thread.join();
    launches.wait(12);
    CHECK_SEEN({StandIn_Complaints()}, {""});
  }
}

// A stream that stands still delays launches into it, and none into another.
TEST(test_streams_wait_for_their_own_room) {
  for (On on : kBothWays) {
    OnDevice device(on, 1, 0), other(on, 1, 0);
    Launches held(device), launches(other);
    StandIn_Hold(device.stream);
    for (int i = 0; i < 7; ++i) held.launch(kLarge);
    for (int i = 0; i < 12; ++i) launches.launch(kLarge);
    launches.wait(12);
    CHECK_EQ(held.seen.size(), size_t{0});
    StandIn_LetGo(device.stream);
    held.wait(7);
    CHECK_SEEN({StandIn_Complaints()}, {""});
  }
}

// If the stream fails while somebody waits for room in it, the launch fails. (What host functions would have freed is
// lost with a stream, so that this is tried with the kernel alone.)
TEST(test_stream_that_fails_while_room_is_awaited) {
  OnDevice device(On::kCuda, 1, 0);
  Launches launches(device);
  StandIn_Hold(device.stream);
  for (int i = 0; i < 7; ++i) launches.launch(kLarge);
  std::string error;
  std::thread thread([&] {
    try {
      launches.launch(kLarge);
    } catch (const cuda::DriverError &failed) {
      error = failed.what();
    }
  });
  StandIn_FailStream(device.stream, 700);
  thread.join();
  CHECK(error.find("CUDA_ERROR_ILLEGAL_ADDRESS") != error.npos);
  launches.wait_for_the_end(); // the stream is asked for until then
  StandIn_LetGo(device.stream);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// A call whose flag is not looked at any more is answered: with an error.
TEST(test_calls_are_answered_when_the_process_ends) {
  OnDevice device(On::kCuda, 1, drain().open(1, 0));
  StandIn_Hold(device.stream);
  std::string error;
  std::thread program([&] { error = device.call(21, kOrderedTrait | kRecordIsCallback, {Ints({1})}); });
  while (StandIn_Calls("cuLaunchKernel") == 0) std::this_thread::yield();
  cuda::arrivals().stop();
  program.join();
  CHECK(error.find("process ends.") != error.npos); // whether it was waited for by then or about to be
  StandIn_LetGo(device.stream);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// When the process ends no flag is looked at any more, and later launches take host functions.
TEST(test_arrivals_stop) {
  OnDevice device(On::kCuda, 1, 0);
  Launches launches(device);
  StandIn_Hold(device.stream);
  launches.launch("01234567.");
  cuda::arrivals().stop();
  launches.launch("12345678.");
  StandIn_LetGo(device.stream);
  launches.wait(1);
  CHECK_SEEN(launches.seen, {"12345678."});
  CHECK_EQ(StandIn_Calls("cuLaunchHostFunc"), 1);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

} // namespace
} // namespace effects::cuda_arrivals_test
