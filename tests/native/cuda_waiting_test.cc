// Who waits: a thread that launches, for an answer, and a host function, for room in its ring.
#include <string>
#include <thread>
#include <vector>

#include "cuda_world.h"
#include "dispatch/native/xla/runtime.h"

namespace effects::cuda_waiting_test {
namespace {

constexpr int64_t kCallTraits = kRecordIsOrdered | kRecordIsCallback;

bool Has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// Takes batches until one has a record that asks, and returns its number.
uint32_t TakeQuestion() {
  for (;;) {
    const Batch batch = drain().next_batch(kPatience);
    uint32_t asked = 0;
    for (const Item &item : batch.items) asked = item.reply != 0 ? item.reply : asked;
    if (batch.run != Batch::kNoRun) drain().resume(batch.run, batch.run_number);
    if (asked != 0) return asked;
  }
}

// What a callback fails with is the call's error, as it is.
TEST(test_callback_that_fails) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  std::string error;
  std::thread program([&] { error = device.call(21, kCallTraits, {Ints({1})}); });
  replies().fail(TakeQuestion(), "as asked");
  program.join();
  CHECK(error == "as asked");
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// A stream that fails while its answer is awaited ends the wait; an answer that comes later harms nothing.
TEST(test_stream_that_fails_while_an_answer_is_awaited) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  std::string error;
  std::thread program([&] { error = device.call(21, kCallTraits, {Ints({1})}); });
  const uint32_t question = TakeQuestion();
  StandIn_FailStream(device.stream, 700);
  program.join();
  CHECK(Has(error, "The effect at model.py:7 could not be recorded on the device."));
  CHECK(Has(error, "`cuStreamQuery` failed with CUDA_ERROR_ILLEGAL_ADDRESS"));
  const int32_t numbers[] = {7, 8};
  replies().answer(question, {{{numbers, sizeof numbers}, {nullptr, 0}}, {}});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Results that the driver does not take are the call's error.
TEST(test_results_that_cannot_be_copied) {
  uint32_t thread = 0;
  for (const char *function : {"cuMemcpyHtoDAsync_v2", "cuLaunchHostFunc"}) {
    ++thread;
    OnDevice device(On::kCudaWithoutKernel, thread, drain().open(thread, 0));
    std::string error;
    std::thread program([&] { error = device.call(21, kCallTraits, {Ints({1})}); });
    const uint32_t question = TakeQuestion();
    StandIn_FailCall(function, 0, 700);
    const int32_t numbers[] = {7, 8};
    replies().answer(question, {{{numbers, sizeof numbers}, {nullptr, 0}}, {}});
    program.join();
    CHECK(Has(error, "`" + std::string(function) + "` failed with"));
  }
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// A callback that waits for its own stream, while a host function there waits for room in its ring, does not wait for
// ever: another thread leads the drain meanwhile, and takes what stands behind the callback out of the ring.
TEST(test_full_ring_while_a_callback_waits_for_the_stream) {
  publisher().ring_bytes = kSmallest;
  constexpr uint32_t kRecords = 2000; // many times what the ring holds, and the drain parks
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Launching asks(device, 11, kRecordIsOrdered | kRecordIsCallback), says(device, 12);
  StandIn_Hold(device.stream); // so that all of them are launched before the first is published
  Token token = device.token.token;
  CHECK(asks.record(token, 0).empty());
  for (++token.index; token.index < kRecords; ++token.index) CHECK(says.record(token, 1).empty());
  CHECK(says.close(token).empty());
  StandIn_LetGo(device.stream);

  // Each of the drain's threads leads, and waits for the stream in the callback.
  uint32_t seen = 0, callbacks = 0;
  size_t ended = 0;
  const auto lead = [&] {
    while (wake_up().stand_by()) {
      for (bool leads = true; leads;) {
        const Batch batch = drain().next_batch(kPatience);
        for (const Item &item : batch.items) {
          ForEachRecord(item,
                        [&](const RecordHeader &header, const std::string &) { CHECK_EQ(header.token.index, seen++); });
          if (item.has_callbacks) ++callbacks;
        }
        ended += batch.finished.size();
        if (ended != 0) {
          wake_up().stop();
          wake_up().leave();
          return;
        }
        if (batch.run == Batch::kNoRun) continue;
        wake_up().offer();
        StandIn_Synchronize(device.stream);
        drain().resume(batch.run, batch.run_number);
        leads = wake_up().reclaim();
      }
    }
  };
  std::vector<std::thread> drains;
  for (int i = 0; i < 2; ++i) drains.emplace_back(lead);
  for (std::thread &each : drains) each.join();
  CHECK_EQ(seen, kRecords);
  CHECK_EQ(callbacks, 1u);
  CHECK(publisher().stats.waited.load() != 0);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

} // namespace
} // namespace effects::cuda_waiting_test
