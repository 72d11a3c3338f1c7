// What handlers put into a stream: when it is done, what it keeps, and what they say if the driver fails.
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_world.h"
#include "dispatch/native/xla/host_failures.h"
#include "dispatch/native/xla/runtime.h"
#include "extensions/cuda/native/pinned.h"

namespace effects::cuda_launch_test {
namespace {

bool Has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// Nothing is published while the stream stands still, and the thread that launches does not wait. What is published is
// what lay there when the stream came by; the site is known until then, though the program is gone.
TEST(test_records_wait_for_the_stream) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching launching(device);
  StandIn_Hold(device.stream);
  Token token = device.token.token;
  for (int i = 0; i < 3; ++i, ++token.index) CHECK(launching.record(token, i).empty());
  launching.unload();
  CHECK_EQ(publisher().count_published().records, uint64_t{0});
  CHECK_EQ(sites().holders(11), uint64_t{1});
  CHECK(drain().next_batch(std::chrono::milliseconds(1)).items.empty());
  StandIn_LetGo(device.stream);
  device.synchronize();
  CHECK_EQ(sites().holders(11), uint64_t{0});
  device.token.token = token;
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{3});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Slots are used again when the stream has come by, and no sooner; a thousand launches need no more than are under way.
TEST(test_slots_are_used_again) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching launching(device);
  Token token = device.token.token;
  const auto launch = [&] {
    CHECK(launching.record(token, 1).empty());
    ++token.index;
  };
  for (int i = 0; i < 100; ++i) {
    launch();
    device.synchronize();
  }
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 1);
  StandIn_Hold(device.stream);
  for (int i = 0; i < 10; ++i) launch();
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 1);
  StandIn_LetGo(device.stream);
  device.synchronize();
  for (int i = 0; i < 10; ++i) launch();
  device.synchronize();
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 1);
  device.token.token = token;
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{120});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Small slots come of one block of the driver's, each its own; large ones have a block each. What is abandoned is used
// no more.
TEST(test_slots_share_blocks) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  cuda::PinnedPool pool;
  const cuda::InContextOf context(cuda::driver(), static_cast<cuda::Stream>(device.stream));
  std::set<std::byte *> places;
  {
    std::vector<cuda::Slot> slots;
    for (int i = 0; i < 256; ++i) {
      slots.push_back(pool.take(cuda::driver(), 1000));
      places.insert(slots.back().data());
      std::memset(slots.back().data(), i, 1000);
    }
    CHECK_EQ(places.size(), size_t{256});
    CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 1);
    cuda::Slot large = pool.take(cuda::driver(), size_t{1} << 25);
    CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 2);
    slots.back().abandon();
  }
  std::vector<cuda::Slot> again;
  for (int i = 0; i < 255; ++i) {
    again.push_back(pool.take(cuda::driver(), 513));
    CHECK_EQ(places.count(again.back().data()), size_t{1});
  }
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 2);
  again.push_back(pool.take(cuda::driver(), 513));
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 3);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Large slots of many sizes need no more memory than the largest of them, and small ones take none of theirs.
TEST(test_large_slots_serve_smaller_ones) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  cuda::PinnedPool pool;
  const cuda::InContextOf context(cuda::driver(), static_cast<cuda::Stream>(device.stream));
  constexpr size_t kBlock = size_t{1} << 18;
  for (size_t blocks = 40; blocks > 1; --blocks)
    for (size_t size : {blocks * kBlock, blocks * kBlock - 7, (blocks - 1) * kBlock + 1}) {
      const cuda::Slot slot = pool.take(cuda::driver(), size);
      std::memset(slot.data(), 1, size);
    }
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 1);
  const cuda::Slot one = pool.take(cuda::driver(), kBlock + 1), other = pool.take(cuda::driver(), kBlock + 1),
                   small = pool.take(cuda::driver(), kBlock);
  std::memset(other.data(), 1, kBlock + 1);
  CHECK_EQ(StandIn_Calls("cuMemHostAlloc"), 3);
  CHECK_EQ(StandIn_Allocated(), 40 * kBlock + 2 * kBlock + kBlock);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Whatever the driver fails at, the handler's error says what that was, which error it had, and at which line. Nothing
// is published then, no context is left behind, and the next call is as any other.
TEST(test_errors_of_the_driver) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching launching(device);
  Token token = device.token.token;
  for (const char *function :
       {"cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuLaunchHostFunc"})
    for (int skipped : {0, 1}) {
      if (skipped == 1 && std::strcmp(function, "cuMemcpyDtoHAsync_v2") != 0) continue;
      StandIn_FailCall(function, skipped, 700);
      const std::string error = launching.record(token, 1);
      CHECK(Has(error, "The effect at model.py:7 could not be recorded on the device."));
      CHECK(Has(error,
                "`" + std::string(function) + "` failed with CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access"));
      CHECK_EQ(StandIn_Contexts(), 0);
    }
  StandIn_FailCall("cuStreamGetCtx", 0, 12345);
  CHECK(Has(launching.record(token, 1), "`cuStreamGetCtx` failed with error 12345."));
  device.synchronize();
  CHECK_EQ(publisher().count_published().records, uint64_t{0});
  CHECK(launching.record(token, 2).empty());
  ++device.token.token.index;
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{1});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// What a host function cannot publish fails its program, whose order does not wait for the record, and no other.
TEST(test_failure_of_a_host_function) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching launching(device), wrong(device, 12, kRecordIsOrdered | kRecordLeaves); // whose operand is no token
  CHECK(launching.record(device.token.token, 1).empty());
  CHECK(wrong.record(device.token.token, 1).empty());
  device.synchronize();
  CHECK(launching.record(device.token.token, 1).empty());
  std::vector<HostFailure> failures = host_failures().take();
  CHECK_EQ(failures.size(), size_t{1});
  CHECK(failures[0].thread == 1 && failures[0].epoch == device.token.token.epoch);
  CHECK(Has(failures[0].text, "could not be published when its values had been copied from the device: A token has"));
  CHECK_EQ(Play({}, 1).size(), size_t{1});

  CHECK(launching.record(device.token.token, 1, /*token_size=*/8).empty()); // not even the first is a token
  device.synchronize();
  failures = host_failures().take();
  CHECK_EQ(failures.size(), size_t{1});
  CHECK_EQ(failures[0].thread, kPlainThread);
}

// With a driver that is too old or lacks a function, handlers fail and the status says why.
TEST(test_drivers_that_cannot_be_used) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching launching(device);
  const auto why = [&](const std::string &expected) {
    CHECK(cuda::find_driver() == nullptr);
    CHECK(Has(cuda::driver_status().why_none, expected));
    CHECK(Has(launching.record(device.token.token, 1), expected));
  };
  StandIn_SetVersion(10020);
  cuda::use_driver("the stand-in", &StandIn_Find);
  CHECK_EQ(cuda::driver_status().version, 10020);
  why("It is of CUDA 10.2, and 11.0 is the oldest that can be used.");
  StandIn_SetVersion(12040);
  cuda::use_driver("the stand-in", [](const char *name) {
    return std::strcmp(name, "cuLaunchHostFunc") == 0 ? nullptr : StandIn_Find(name);
  });
  why("It has no function `cuLaunchHostFunc`.");
  cuda::use_driver("the stand-in", &StandIn_Find);
  CHECK(cuda::find_driver() != nullptr && cuda::driver_status().why_none.empty());
  CHECK_EQ(cuda::driver_status().version, 12040);
}

// What was lowered for CPUs alone has its handlers write tokens: it is refused when it is loaded.
TEST(test_programs_of_other_platforms_are_refused) {
  OnDevice device(On::kCudaWithoutKernel, 1, 0);
  Launching launching(device);
  Loaded other{0, device.stream, nullptr};
  const std::string error =
      Frame(other)
          .attributes({{"site", int64_t{1}}, {"traits", int64_t{1}}, {"description", std::string()}})
          .call(launching.load, XLA_FFI_ExecutionStage_INSTANTIATE);
  CHECK(Has(error, "was lowered for other platforms"));
}

} // namespace
} // namespace effects::cuda_launch_test
