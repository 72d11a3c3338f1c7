// Prints what a record costs its producer and its consumer, in nanoseconds.
//
//   g++ -std=c++17 -O2 -pthread tests/native/ring_bench.cc dispatch/native/{producer,order,drain}/*.cc -o ring_bench
//   ./ring_bench
//
// "publish" is Publisher::publish into a ring that is emptied between the measurements; "drained" is the same with a
// drain at work on another core, timed until the last record has left in order.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "dispatch/native/drain/drain.h"
#include "dispatch/native/producer/publisher.h"

namespace effects {
namespace {

using Clock = std::chrono::steady_clock;

double Nanoseconds(Clock::duration time, uint64_t records) {
  return std::chrono::duration<double, std::nano>(time).count() / static_cast<double>(records);
}

constexpr uint32_t kThread = 1;

void PublishMany(Publisher &publisher, uint32_t epoch, uint32_t records, size_t size) {
  const std::vector<char> bytes(size);
  const Span span{bytes.data(), bytes.size()};
  for (uint32_t index = 0; index < records; ++index)
    publisher.publish(Kind::kOrdered, 7, {StreamOf(kThread, 0), epoch, 0, index}, 0, &span, 1);
}

double BenchPublish(size_t size) {
  double nanoseconds = 0;
  std::thread([&] {
    WakeUp wake_up;
    Publisher publisher(wake_up);
    const uint32_t records = static_cast<uint32_t>((size_t{1} << 19) / (sizeof(RecordHeader) + size)); // half a ring
    const auto empty = [&] {
      publisher.for_each_ring([](ProducerRing &each) {
        each.ring.take(each.ring.end(), [](const std::byte *) { return true; });
        return true;
      });
    };
    for (int warm = 0; warm < 4; ++warm) {
      PublishMany(publisher, 0, records, size);
      empty();
    }
    constexpr int kRounds = 100;
    Clock::duration time{};
    for (int round = 0; round < kRounds; ++round) {
      const auto start = Clock::now();
      PublishMany(publisher, 0, records, size);
      time += Clock::now() - start;
      empty();
    }
    nanoseconds = Nanoseconds(time, uint64_t{kRounds} * records);
  }).join();
  return nanoseconds;
}

double BenchDrained(size_t size, bool text) {
  double best = 1e9;
  for (int repeat = 0; repeat < 5; ++repeat) {
    constexpr uint32_t kRecords = 300000;
    WakeUp wake_up;
    Publisher publisher(wake_up);
    Sites sites;
    Replies replies;
    Drain drain(wake_up, publisher, sites, replies);
    if (text) {
      Plan plan;
      plan.pieces.resize(1);
      plan.pieces[0].literal = "step ";
      plan.pieces[0].has_field = true;
      plan.pieces[0].type = Scalar::kInt64;
      sites.set_plan(7, plan);
    }
    drain.open(kThread, text ? 1 : 0);
    const auto start = Clock::now();
    std::thread producer([&] {
      PublishMany(publisher, 0, kRecords, size);
      const Token last{StreamOf(kThread, 0), 0, 0, kRecords};
      const Span span{&last, sizeof last};
      publisher.publish(Kind::kClose, 0, last, 0, &span, 1);
    });
    for (bool ended = false; !ended;) {
      const Batch batch = drain.next_batch(std::chrono::milliseconds(50));
      if (batch.has_run()) drain.resume(batch.run, batch.run_number); // its records are not replayed
      ended = !batch.finished.empty();
    }
    best = std::min(best, Nanoseconds(Clock::now() - start, kRecords));
    producer.join();
  }
  return best;
}

} // namespace
} // namespace effects

int main() {
  using namespace effects;
  std::printf("%14s %12s %18s %15s\n", "payload bytes", "publish ns", "drained, bytes ns", "drained, text ns");
  for (size_t size : {size_t{8}, size_t{64}, size_t{512}})
    std::printf("%14zu %12.1f %18.1f %15.1f\n", size, BenchPublish(size), BenchDrained(size, false),
                BenchDrained(size, true));
  return 0;
}
