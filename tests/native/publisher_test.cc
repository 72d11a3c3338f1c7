// Publisher and Drain together: threads publish, one thread drains, nothing is lost, reordered or waited for in vain.
//
// A thread's ring belongs to the first Publisher it publishes to, and every test has a Publisher of its own: only
// threads that a test starts publish, the main thread is always the drain's.
#include "../../dispatch/native/publisher.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../dispatch/native/drain.h"
#include "check.h"

namespace effects {
namespace {

using check::MakeToken;
using check::Random;
using std::chrono::milliseconds;

constexpr size_t kSmallest = 4096;
constexpr milliseconds kPatience{50};

// What a payload holds follows from its record's token.
std::string BytesOf(const Token &token, size_t size) {
  Random random(uint64_t{token.stream} << 40 ^ uint64_t{token.epoch} << 20 ^ token.index);
  std::string bytes;
  while (bytes.size() < size) bytes += static_cast<char>(random.next());
  return bytes;
}

constexpr uint64_t kSite = 7;
constexpr int32_t kDevice = 3;

// What a payload begins with, so that the text of a record says which one it is.
struct Preface {
  uint64_t size; // of what follows
  uint32_t stream, epoch, index;
  uint32_t kind;
};

bool Publish(Publisher &publisher, Kind kind, const Token &token, size_t size, uint16_t flags = 0, uint32_t reply = 0) {
  const std::string bytes = BytesOf(token, size);
  const Preface preface{size, token.stream, token.epoch, token.index, static_cast<uint32_t>(kind)};
  const Span spans[] = {{&preface, sizeof preface}, {bytes.data(), bytes.size()}};
  return publisher.publish(kind, kSite, token, kDevice, spans, 2, flags, reply);
}

// The plan with which native code formats such records: a line each, long enough that many fill a batch.
constexpr char kLine[] = "size, stream, epoch, index and kind of a record:";
constexpr uint64_t kSink = 1; // that of plain records, too
Plan LinePlan() {
  Plan plan(6);
  const std::pair<Scalar, size_t> fields[] = {{Scalar::kUint64, offsetof(Preface, size)},
                                              {Scalar::kUint32, offsetof(Preface, stream)},
                                              {Scalar::kUint32, offsetof(Preface, epoch)},
                                              {Scalar::kUint32, offsetof(Preface, index)},
                                              {Scalar::kUint32, offsetof(Preface, kind)}};
  for (size_t i = 0; i < 5; ++i) {
    plan[i].literal = i == 0 ? std::string(kLine) + " " : " ";
    plan[i].has_field = true;
    plan[i].type = fields[i].first;
    plan[i].offset = fields[i].second;
  }
  plan[5].literal = "\n";
  return plan;
}

// Calls `visit(preface)` for every record that a text stands for, which LinePlan() formatted.
template <typename Visit>
void ForEachLine(const Item &item, Visit &&visit) {
  CHECK(item.what == Item::kText);
  CHECK(!item.calls && !item.asked);
  uint64_t count = 0;
  std::istringstream lines(item.data);
  for (std::string line; std::getline(lines, line); ++count) {
    CHECK(line.compare(0, sizeof kLine - 1, kLine) == 0);
    std::istringstream fields(line.substr(sizeof kLine - 1));
    Preface preface{};
    CHECK(fields >> preface.size >> preface.stream >> preface.epoch >> preface.index >> preface.kind);
    visit(preface);
  }
  CHECK_EQ(item.count, count);
}

// Calls `visit(header, payload)` for every record that an item stands for. The item is not text.
template <typename Visit>
void ForEachRecord(const Item &item, Visit &&visit) {
  CHECK(item.what != Item::kText);
  if (item.what == Item::kLarge) {
    CHECK_EQ(item.count, uint64_t{1});
    RecordHeader header;
    CHECK_EQ(item.data.size(), sizeof header);
    std::memcpy(&header, item.data.data(), sizeof header);
    CHECK_EQ(header.payload_size, item.size);
    visit(header, std::string(reinterpret_cast<const char *>(item.block.get()), item.size));
    return;
  }
  uint64_t count = 0;
  for (size_t at = 0; at < item.data.size(); ++count) {
    RecordHeader header;
    CHECK(at + sizeof header <= item.data.size());
    std::memcpy(&header, item.data.data() + at, sizeof header);
    at += sizeof header;
    CHECK(at + header.payload_size <= item.data.size());
    visit(header, item.data.substr(at, header.payload_size));
    at += header.payload_size;
  }
  CHECK_EQ(item.count, count);
}

void Close(Publisher &publisher, uint32_t thread, uint32_t epoch,
           const std::vector<std::pair<uint32_t, uint32_t>> &finals) {
  std::vector<Token> tokens;
  for (auto &[domain, index] : finals) tokens.push_back(MakeToken(thread, domain, epoch, index));
  const Span span{tokens.data(), tokens.size() * sizeof(Token)};
  CHECK(publisher.publish(Kind::kClose, 0, tokens.at(0), 0, &span, 1));
}

// A program on its device: publishes from one thread, counts its domains.
class Program {
public:
  Program(Publisher &publisher, uint32_t thread, uint32_t epoch)
      : publisher_(publisher), thread_(thread), epoch_(epoch) {}
  void record(size_t size, uint32_t domain = 0) {
    Publish(publisher_, Kind::kOrdered, MakeToken(thread_, domain, epoch_, next_[domain]++), size);
  }
  void callback(size_t size = 8, uint32_t reply = 0) {
    CHECK(Publish(publisher_, Kind::kOrdered, MakeToken(thread_, 0, epoch_, next_[0]++), size, kCallback, reply) ||
          reply == 0);
  }
  void unordered_callback() { Publish(publisher_, Kind::kUnordered, MakeToken(thread_, 0, epoch_, 0), 8, kCallback); }
  void unordered(size_t size) { Publish(publisher_, Kind::kUnordered, MakeToken(thread_, 0, epoch_, 0), size); }
  void close() {
    next_[0];
    Close(publisher_, thread_, epoch_, {next_.begin(), next_.end()});
  }

private:
  Publisher &publisher_;
  uint32_t thread_;
  uint32_t epoch_;
  std::map<uint32_t, uint32_t> next_;
};

// A Publisher, a Drain, and what left them, checked as it leaves.
class World {
public:
  explicit World(WhenFull when_full = WhenFull::kWait, size_t ring_bytes = kSmallest) {
    publisher.when_full = when_full;
    publisher.ring_bytes = ring_bytes;
  }

  // From now on native code formats the records that are not of callbacks, those of the programs that are opened with
  // the returned sink and plain ones.
  uint64_t show_text() {
    sites.set_plan(kSite, LinePlan());
    return kSink;
  }

  // Publishes as handlers.cc does.
  bool plain(bool ordered, size_t size, uint16_t flags = 0, uint32_t reply = 0) {
    Token place{kPlainThread << kDomainBits,
                static_cast<uint32_t>(publisher.dispatches.load(std::memory_order_relaxed)), 0, 0};
    if (ordered) place.index = publisher.plain_index.fetch_add(1, std::memory_order_relaxed);
    if (!Publish(publisher, ordered ? Kind::kOrdered : Kind::kUnordered, place, size, flags, reply)) return false;
    drain.plain_published();
    return true;
  }

  // Takes one batch and checks it: payloads are whole, every thread's records come by epoch, domain and index, nothing
  // follows the end of its epoch, and ends come in order. From the first record for Python on, all is of one thread,
  // and that is the batch's run.
  Batch step(milliseconds patience = kPatience) {
    Batch batch = drain.next_batch(patience);
    bool runs = false;
    bool ordered = false;
    uint64_t plain_in_run = 0;
    for (const Item &item : batch.items) {
      runs = runs || item.what != Item::kText;
      if (runs) CHECK_EQ(item.info.thread, batch.run);
      if (runs && item.info.thread == kPlainThread) plain_in_run += item.count;
      if (item.what == Item::kText) {
        ForEachLine(item, [&](const Preface &preface) {
          const Token token{preface.stream, preface.epoch, 0, preface.index};
          see(item, static_cast<Kind>(preface.kind), token);
        });
        continue;
      }
      ForEachRecord(item, [&](const RecordHeader &header, const std::string &payload) {
        ordered = ordered || header.kind == Kind::kOrdered;
        check_payload(header, payload);
        if (header.reply != 0) ++awaited_seen;
        see(item, header.kind, header.token);
      });
    }
    CHECK_EQ(runs, batch.run != ReleaseOrder::kNobody);
    CHECK_EQ(batch.ordered_run, ordered);
    CHECK_EQ(batch.plain_in_run, plain_in_run);
    if (batch.run == kPlainThread)
      CHECK_EQ(batch.held(), ordered ? kPlainThread : ReleaseOrder::kNoThread);
    else
      CHECK_EQ(batch.held(), batch.run);
    for (const Finished &one : batch.finished) {
      Seen &seen = seen_of(one.thread);
      CHECK_EQ(one.epoch, seen.ended);
      ++seen.ended;
      ++finished;
    }
    return batch;
  }
  // As the host does when a batch's records for Python have been replayed.
  void resume(const Batch &batch) {
    CHECK(batch.run != ReleaseOrder::kNobody);
    drain.resume(batch.held(), batch.plain_in_run);
  }
  // Takes one batch, and all of it has been replayed.
  Batch play(milliseconds patience = kPatience) {
    Batch batch = step(patience);
    if (batch.run != ReleaseOrder::kNobody) resume(batch);
    return batch;
  }
  void until_finished(size_t epochs) {
    while (finished < epochs) play();
    CHECK_EQ(finished, epochs);
  }
  void check_nothing_lost(uint64_t attempts) {
    CHECK_EQ(publisher.stats.released.load() + publisher.stats.dropped.load(), attempts);
    CHECK_EQ(ordered_seen + unordered_seen + plain_seen, publisher.stats.released.load());
  }

  Publisher publisher;
  Sites sites;
  Replies replies;
  Drain drain{publisher, sites, replies};
  bool gaps_allowed = false; // programs fail
  size_t finished = 0;
  uint64_t ordered_seen = 0;
  uint64_t unordered_seen = 0;
  uint64_t plain_seen = 0;
  uint64_t awaited_seen = 0; // records that somebody waits for

private:
  struct Seen {
    uint32_t epoch = 0;                // of the last ordered record
    uint32_t ended = 0;                // how many epochs have
    std::map<uint32_t, uint32_t> next; // by stream
  };
  static void check_payload(const RecordHeader &header, const std::string &payload) {
    const Token &token = header.token;
    CHECK_EQ(header.site, kSite);
    CHECK_EQ(header.device, (header.flags & kReplicated) != 0 ? kAllDevices : kDevice);
    Preface preface;
    CHECK(payload.size() >= sizeof preface);
    std::memcpy(&preface, payload.data(), sizeof preface);
    CHECK_EQ(payload.size(), sizeof preface + RoundUp8(preface.size));
    CHECK(payload.compare(sizeof preface, preface.size, BytesOf(token, preface.size)) == 0);
  }
  void see(const Item &item, Kind kind, const Token &token) {
    const uint32_t thread = ThreadOf(token);
    CHECK_EQ(item.info.thread, thread);
    if (thread == kPlainThread) {
      ++plain_seen;
      return;
    }
    if (item.what != Item::kText) CHECK_EQ(item.info.epoch, token.epoch); // a text may be of several
    Seen &seen = seen_of(thread);
    CHECK(token.epoch >= seen.ended);
    if (kind == Kind::kUnordered) {
      ++unordered_seen;
      return;
    }
    CHECK(token.epoch >= seen.epoch);
    if (token.epoch != seen.epoch) seen.next.clear();
    seen.epoch = token.epoch;
    uint32_t &next = seen.next[token.stream];
    if (publisher.when_full.load() == WhenFull::kWait && !gaps_allowed)
      CHECK_EQ(token.index, next);
    else
      CHECK(token.index >= next);
    next = token.index + 1;
    ++ordered_seen;
  }
  Seen &seen_of(uint32_t thread) {
    if (threads_.size() <= thread) threads_.resize(thread + 1);
    return threads_[thread];
  }
  std::vector<Seen> threads_;
};

// Runs `body` in a thread of its own, with a ring of its own, to its end.
template <typename Body>
void InThread(Body &&body) {
  std::thread(body).join();
}

// `threads` threads, each of which dispatches programs with random effects and publishes them itself.
// Python sees the records, or native code formats them, or one half each.
void PublishAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest, bool text,
                     bool python) {
  World world(when_full);
  const uint64_t sink = text ? world.show_text() : 0;
  std::atomic<uint64_t> attempts{0};
  std::vector<std::thread> producers;
  for (uint32_t thread = 1; thread <= threads; ++thread)
    producers.emplace_back([&, thread] {
      check::seed = seed;
      Random random(seed * 100 + thread);
      uint64_t mine = 0;
      for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        const bool formatted = text && (!python || random.one_in(2));
        CHECK_EQ(world.drain.open(thread, formatted ? sink : 0), epoch);
        Program program(world.publisher, thread, epoch);
        for (uint64_t left = random.below(80); left > 0; --left) {
          const size_t size = random.one_in(20) ? random.below(largest) : random.below(100);
          if (random.one_in(5))
            program.unordered(size);
          else
            program.record(size, static_cast<uint32_t>(random.below(3)));
          ++mine;
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
void PublishAndDrain(WhenFull when_full, uint64_t seed, uint32_t threads, uint32_t epochs, size_t largest) {
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/true, /*python=*/false);
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/false, /*python=*/true);
  PublishAndDrain(when_full, seed, threads, epochs, largest, /*text=*/true, /*python=*/true);
}

// Under `wait`, many threads with tiny rings lose nothing and every thread's order is kept.
void test_wait_loses_nothing() { PublishAndDrain(WhenFull::kWait, 1, 4, 60, 900); }

// Records too large for the ring travel beside it, in the same order.
void test_wait_with_large_records_loses_nothing() { PublishAndDrain(WhenFull::kWait, 2, 3, 25, 30000); }

// Under `drop newest`, what is released and what is counted as dropped is all there was, and every epoch ends.
void test_drop_newest_counts_what_it_drops() {
  PublishAndDrain(WhenFull::kDropNewest, 3, 4, 150, 900);
  PublishAndDrain(WhenFull::kDropNewest, 4, 3, 60, 30000);
}

// The same under `drop oldest`.
void test_drop_oldest_counts_what_it_drops() {
  PublishAndDrain(WhenFull::kDropOldest, 5, 4, 150, 900);
  PublishAndDrain(WhenFull::kDropOldest, 6, 3, 60, 30000);
}

// Many short programs, each dispatched while the drain is busy: a drop or a close that the drain sees before it has
// read of the program's dispatch is not forgotten.
void test_dropping_short_programs_end() {
  for (WhenFull when_full : {WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    World world(when_full);
    constexpr uint32_t kEpochs = 1500;
    std::vector<std::thread> producers;
    for (uint32_t thread = 1; thread <= 2; ++thread)
      producers.emplace_back([&, thread] {
        for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
          world.drain.open(thread, 0);
          Program program(world.publisher, thread, epoch);
          for (int i = 0; i < 6; ++i) program.record(700);
          program.close();
        }
      });
    world.until_finished(2 * kEpochs);
    for (std::thread &producer : producers) producer.join();
    world.check_nothing_lost(2 * kEpochs * 6);
  }
}

// One program whose effects come from several of the runtime's threads, which run ahead of each other over many epochs:
// the order is restored, and unordered records are not lost behind the close that another thread published.
void test_one_program_on_several_threads() {
  World world;
  constexpr uint32_t kWorkers = 3;
  constexpr uint32_t kEpochs = 150;
  constexpr uint32_t kRecords = 20;
  for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) world.drain.open(1, 0);
  std::vector<std::atomic<uint32_t>> running(kEpochs);
  for (auto &one : running) one = kWorkers;
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < kWorkers; ++worker)
    workers.emplace_back([&, worker] {
      Random random(worker);
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        for (uint32_t index = 0; index < kRecords; ++index) {
          Publish(world.publisher, Kind::kOrdered, MakeToken(1, worker, epoch, index), random.below(200));
          if (index % 4 == 0) Publish(world.publisher, Kind::kUnordered, MakeToken(1, 0, epoch, index), 8);
        }
        if (running[epoch].fetch_sub(1) == 1)
          Close(world.publisher, 1, epoch, {{0, kRecords}, {1, kRecords}, {2, kRecords}});
      }
    });
  world.until_finished(kEpochs);
  for (std::thread &worker : workers) worker.join();
  CHECK_EQ(world.ordered_seen, uint64_t{kEpochs} * kWorkers * kRecords);
  CHECK_EQ(world.unordered_seen, uint64_t{kEpochs} * kWorkers * kRecords / 4);
}

// What a thread published before it ended is drained although the thread is gone.
void test_ended_threads_records_are_drained() {
  World world;
  for (uint32_t epoch = 0; epoch < 10; ++epoch) {
    world.drain.open(1, 0);
    InThread([&] {
      Program program(world.publisher, 1, epoch);
      for (int i = 0; i < 5; ++i) program.record(200);
      program.record(1000); // beside the ring; all ten are admitted without a drain
      program.close();
    });
  }
  world.until_finished(10);
  world.check_nothing_lost(60);
}

// The same while the drain runs and threads come and go.
void test_short_lived_threads_lose_nothing() {
  World world;
  constexpr uint32_t kEpochs = 400;
  std::thread dispatcher([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      InThread([&] {
        Program program(world.publisher, 1, epoch);
        for (int i = 0; i < 3; ++i) program.record(100);
        program.unordered(100);
        program.close();
      });
    }
  });
  world.until_finished(kEpochs);
  dispatcher.join();
  world.check_nothing_lost(4 * kEpochs);
}

// When nothing drains any more, a producer that waits for room goes on and counts what it lost; so does one that waits
// with a large record.
void test_stop_releases_a_waiting_producer() {
  for (size_t size : {size_t{100}, size_t{5000}}) {
    World world;
    world.drain.open(1, 0);
    constexpr uint64_t kRecords = 100;
    std::thread producer([&] {
      Program program(world.publisher, 1, 0);
      for (uint64_t i = 0; i < kRecords; ++i) program.record(size);
      program.close();
    });
    while (world.publisher.stats.waited.load() == 0) std::this_thread::yield();
    world.drain.stop();
    producer.join();
    CHECK(world.publisher.stats.dropped.load() > 0);
    while (!world.play().stopped || world.finished == 0) {
    }
    world.gaps_allowed = true;
    world.check_nothing_lost(kRecords);
  }
}

// stop() wakes the drain, however deep it sleeps.
void test_stop_wakes_the_drain() {
  for (int i = 0; i < 200; ++i) {
    World world;
    std::thread host([&] { world.drain.stop(); });
    while (!world.step(std::chrono::hours(1)).stopped) {
    }
    host.join();
  }
}

// A program's dispatch wakes the drain, in whatever moment it is about to fall asleep.
void test_open_wakes_the_drain() {
  World world;
  constexpr uint32_t kEpochs = 600;
  std::mutex mutex;
  std::condition_variable ended;
  size_t epochs_ended = 0;
  std::thread host([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      Program program(world.publisher, 1, epoch);
      program.record(8);
      program.close();
      world.publisher.wake(); // as a barrier has it
      std::unique_lock lock(mutex);
      ended.wait(lock, [&] { return epochs_ended > epoch; });
    }
  });
  while (world.finished < kEpochs) {
    world.play(std::chrono::hours(1));
    {
      std::lock_guard lock(mutex);
      epochs_ended = world.finished;
    }
    ended.notify_one();
  }
  host.join();
}

// So does a plain record, which Python sees or native code formats.
void test_plain_record_wakes_the_drain() {
  for (bool text : {true, false}) {
    World world;
    if (text) world.show_text();
    constexpr uint64_t kRecords = 200;
    std::mutex mutex;
    std::condition_variable left;
    uint64_t records_left = 0;
    std::thread host([&] {
      for (uint64_t i = 0; i < kRecords; ++i) {
        CHECK(world.plain(i % 3 != 0, 8));
        std::unique_lock lock(mutex);
        left.wait(lock, [&] { return records_left > i; });
      }
    });
    while (world.plain_seen < kRecords) {
      const Batch batch = world.play(std::chrono::hours(1));
      CHECK_EQ(batch.plain_released + batch.plain_in_run, world.plain_seen);
      if (text) CHECK_EQ(batch.plain_released, world.plain_seen);
      {
        std::lock_guard lock(mutex);
        records_left = world.plain_seen;
      }
      left.notify_one();
    }
    host.join();
  }
}

// A producer that finds its ring full wakes the drain, though no program is open: here an ended program's late records.
void test_full_ring_wakes_the_drain() {
  World world;
  world.drain.open(1, 0);
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.until_finished(1);
  std::atomic<bool> done{false};
  std::thread late([&] {
    for (int i = 0; i < 300; ++i) Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 0), 100);
    done = true;
    world.drain.stop();
  });
  while (!world.step(std::chrono::hours(1)).stopped) {
  }
  CHECK(done);
  late.join();
}

// A program that floods its ring while an earlier one, which needs the same thread, has published nothing: the limit of
// what is parked grows, and both end.
void test_later_program_floods_before_the_earlier() {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  constexpr uint64_t kFlood = 1500;
  std::thread device([&] {
    Program later(world.publisher, 1, 1);
    for (uint64_t i = 0; i < kFlood; ++i) later.record(16);
    later.close();
    Program earlier(world.publisher, 1, 0);
    for (int i = 0; i < 10; ++i) earlier.record(16);
    earlier.close();
  });
  world.until_finished(2);
  device.join();
  world.check_nothing_lost(kFlood + 10);
}

// The same while another thread's programs run without a pause: their progress is not that of the flooded thread.
void test_flood_beside_a_busy_thread() {
  World world;
  world.drain.open(1, 0);
  world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the rings' size
  std::atomic<bool> done{false};
  std::thread device([&] {
    Program later(world.publisher, 1, 1);
    for (int i = 0; i < 800; ++i) later.record(16);
    later.close();
    Program(world.publisher, 1, 0).close();
    done = true;
  });
  std::atomic<size_t> others{0};
  std::atomic<bool> over{false};
  std::thread busy([&] {
    for (uint32_t epoch = 0; !done; ++epoch) {
      world.drain.open(2, 0);
      Program program(world.publisher, 2, epoch);
      program.record(8);
      program.close();
      ++others;
    }
    over = true;
  });
  while (!over) world.play(); // it may wait for room
  busy.join();
  world.until_finished(2 + others);
  device.join();
}

// A batch has a size, but an unordered record does not fall behind its program's end because another ring filled the
// batch, and a thread's flood does not keep the drain from the other rings.
void FullBatch(bool text) {
  World world(WhenFull::kWait, size_t{1} << 20);
  const uint64_t sink = text ? world.show_text() : 0;
  world.drain.open(1, sink);
  world.drain.open(2, sink);
  std::mutex mutex;
  std::condition_variable turn_changed;
  int turn = 0;
  // Three rings in a known order, all alive until the end: the close, the flood, the record behind them.
  const auto in_turn = [&](int mine, const std::function<void()> &body) {
    std::unique_lock lock(mutex);
    turn_changed.wait(lock, [&] { return turn == mine; });
    body();
    ++turn;
    turn_changed.notify_all();
  };
  std::thread third([&] { in_turn(2, [&] { Program(world.publisher, 1, 0).unordered(8); }); });
  std::thread second([&] {
    in_turn(1, [&] {
      Program flood(world.publisher, 2, 0);
      for (int i = 0; i < 8000; ++i) flood.unordered(8);
    });
  });
  std::thread first([&] {
    in_turn(0, [&] {
      CHECK(Publish(world.publisher, Kind::kUnordered, MakeToken(1, 0, 0, 0), 8));
      Close(world.publisher, 1, 0, {{0, 0}});
    });
  });
  first.join();
  second.join();
  third.join();
  world.until_finished(1);
  InThread([&] { Program(world.publisher, 2, 0).close(); });
  world.until_finished(2);
  CHECK_EQ(world.unordered_seen, uint64_t{8002});
}
void test_full_batch_loses_no_unordered_record() {
  for (bool text : {true, false}) FullBatch(text);
}

// Records that must wait in their ring, because too much is parked, hold up nothing that stands behind them: neither a
// record without order nor what is left of a failed program.
void test_full_parking_loses_nothing_behind_it() {
  World world;
  for (int i = 0; i < 3; ++i) world.drain.open(1, 0);
  world.step(milliseconds(1)); // the limit now follows the small rings' size; the one below is larger than the limit
  world.publisher.ring_bytes = 32 * kSmallest;
  InThread([&] {
    Program flood(world.publisher, 1, 2);
    for (int i = 0; i < 600; ++i) flood.record(32);
    Program(world.publisher, 1, 0).unordered(8);
    for (uint32_t index = 1; index < 9; index += 2)
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 1, index), 8));
    flood.close();
  });
  InThread([&] { Program(world.publisher, 1, 0).close(); });
  world.drain.fail(1, 1);
  world.gaps_allowed = true;
  world.until_finished(3);
  CHECK_EQ(world.unordered_seen, uint64_t{1});
  CHECK_EQ(world.ordered_seen, uint64_t{604});
}

// A program's failure ends its epoch at once, whatever it did not publish, while others run on.
void test_failed_programs_do_not_hold_up_others() {
  World world;
  world.gaps_allowed = true;
  constexpr uint32_t kEpochs = 300;
  uint64_t attempts = 0;
  std::thread producer([&] {
    Random random(1);
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      world.drain.open(1, 0);
      if (random.one_in(3)) {
        for (uint32_t index = 0; index < 10; ++index)
          if (random.one_in(2) && ++attempts)
            Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, epoch, index), 50);
        world.drain.fail(1, epoch);
      } else {
        Program program(world.publisher, 1, epoch);
        for (int i = 0; i < 10; ++i, ++attempts) program.record(50);
        program.close();
      }
    }
  });
  world.until_finished(kEpochs);
  producer.join();
  world.check_nothing_lost(attempts);
}

// A close is never lost, even one with so many domains that it is too large for the ring, and the ring is full.
void test_large_close_is_never_dropped() {
  for (WhenFull when_full : {WhenFull::kWait, WhenFull::kDropNewest, WhenFull::kDropOldest}) {
    World world(when_full);
    constexpr uint32_t kEpochs = 20;
    std::thread producer([&] {
      for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
        world.drain.open(1, 0);
        Program program(world.publisher, 1, epoch);
        for (uint32_t domain = 0; domain < 200; ++domain) program.record(64, domain);
        program.close();
      }
    });
    if (when_full != WhenFull::kWait) producer.join(); // nothing is drained before all is published
    world.until_finished(kEpochs);
    if (producer.joinable()) producer.join();
    world.check_nothing_lost(200 * kEpochs);
  }
}

// A plain record never leaves before the programs that were dispatched before it, though the drain may see it before it
// has read of them.
void PlainRecordsFollow(bool text) {
  World world;
  const uint64_t sink = text ? world.show_text() : 0;
  constexpr uint32_t kEpochs = 1000;
  std::atomic<uint32_t> settled{0};
  std::thread host([&] {
    for (uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
      while (settled < epoch) std::this_thread::yield(); // no earlier program holds the plain record back
      world.drain.open(1, sink);
      CHECK(world.plain(/*ordered=*/true, 8));
      Program program(world.publisher, 1, epoch);
      program.record(8);
      program.close();
    }
  });
  // Keeps the drain scanning, so that it often passes its inbox just before a dispatch.
  std::thread waker([&] {
    while (settled < kEpochs) {
      world.publisher.wake();
      std::this_thread::yield();
    }
  });
  uint32_t programs = 0;
  uint32_t plain = 0;
  while (settled < kEpochs) {
    const Batch batch = world.play();
    for (const Item &item : batch.items) {
      if (item.info.thread == 1)
        programs += static_cast<uint32_t>(item.count);
      else
        CHECK((plain += static_cast<uint32_t>(item.count)) <= programs); // the k-th plain record has k before it
    }
    settled = static_cast<uint32_t>(std::min<uint64_t>(world.finished, world.plain_seen));
  }
  host.join();
  waker.join();
}
void test_plain_record_follows_earlier_programs() {
  for (bool text : {true, false}) PlainRecordsFollow(text);
}

// A plain record that was dropped as the oldest counts as gone, so that who waits for all plain records ends waiting.
void test_dropped_plain_records_are_not_waited_for() {
  for (bool text : {true, false})
    for (bool ordered : {true, false}) {
      World world(WhenFull::kDropOldest);
      if (text) world.show_text();
      InThread([&] {
        for (int i = 0; i < 200; ++i) CHECK(world.plain(ordered, 100));
      });
      uint64_t released = 0;
      while (released < world.publisher.plain_published.load()) released = world.play().plain_released;
      CHECK_EQ(released, uint64_t{200});
      CHECK(world.publisher.stats.dropped.load() > 0);
      world.check_nothing_lost(200);
    }
}

// The drain does not fall into its deep sleep while a plain record is parked: if the one before it is dropped, nobody
// will tell.
void test_parked_plain_record_keeps_the_drain_awake() {
  World world(WhenFull::kDropNewest);
  const uint32_t missing = world.publisher.plain_index.fetch_add(1);
  InThread([&] { CHECK(world.plain(/*ordered=*/true, 8)); });
  CHECK_EQ(world.step(milliseconds(1)).items.size(), size_t{0}); // returns at all
  InThread([&] {
    world.drain.open(1, 0);
    Program filler(world.publisher, 1, 0);
    for (int i = 0; i < 100; ++i) filler.unordered(100);
    CHECK(!Publish(world.publisher, Kind::kOrdered, {kPlainThread << kDomainBits, 0, 0, missing}, 100));
    filler.close();
  });
  world.until_finished(1);
  while (world.plain_seen == 0) world.play();
  CHECK_EQ(world.plain_seen, uint64_t{1});
}

// Consecutive records with a plan and one destination become one text, in order.
void test_text_is_formatted_in_order() {
  World world;
  Plan plan(1);
  plan[0].literal = "x=";
  plan[0].has_field = true;
  plan[0].type = Scalar::kInt64;
  Plan newline(1);
  newline[0].literal = "\n";
  plan.push_back(newline[0]);
  world.sites.set_plan(kSite, plan);
  world.drain.open(1, /*sink=*/3);
  InThread([&] {
    for (uint32_t index : {1u, 0u, 2u}) {
      const int64_t x = -5 + int64_t{index};
      const Span span{&x, sizeof x};
      CHECK(world.publisher.publish(Kind::kOrdered, 7, MakeToken(1, 0, 0, index), 0, &span, 1));
    }
    Close(world.publisher, 1, 0, {{0, 3}});
  });
  std::string text;
  for (size_t finished = 0; finished == 0;) {
    const Batch batch = world.drain.next_batch(kPatience);
    for (const Item &item : batch.items) {
      CHECK(item.what == Item::kText);
      CHECK_EQ(item.info.sink, uint64_t{3});
      text += item.data;
    }
    finished += batch.finished.size();
  }
  CHECK(text == "x=-5\nx=-4\nx=-3\n");
}

// A batch's items, one string each: "thread.epoch:indices" of records that came together, "large" or "text" before it
// where it is that; before an index "c" if it is a callback's and "u" if it is unordered. Plain records have no epoch:
// "plain:indices". A text's epoch is that of its first record; of one that another plan made than LinePlan() there is
// only the number of its records.
std::vector<std::string> Items(const Batch &batch) {
  std::vector<std::string> items;
  for (const Item &item : batch.items) {
    std::string one = item.info.thread == kPlainThread
                          ? "plain:"
                          : std::to_string(item.info.thread) + "." + std::to_string(item.info.epoch) + ":";
    const auto add = [&](const char *marks, uint32_t index) {
      one += std::string(one.back() == ':' ? "" : ",") + marks + std::to_string(index);
    };
    if (item.what == Item::kText) {
      CHECK(!item.calls && !item.asked);
      if (item.data.compare(0, sizeof kLine - 1, kLine) == 0)
        ForEachLine(item, [&](const Preface &preface) {
          add(static_cast<Kind>(preface.kind) == Kind::kUnordered ? "u" : "", preface.index);
        });
      else
        one += "#" + std::to_string(item.count);
      items.push_back("text " + one);
      continue;
    }
    CHECK_EQ(item.info.thread, batch.run);
    bool calls = false;
    bool asked = false;
    ForEachRecord(item, [&](const RecordHeader &header, const std::string &) {
      CHECK_EQ(ThreadOf(header.token), item.info.thread);
      CHECK(!asked); // only the last of an item is
      calls = calls || (header.flags & kCallback) != 0;
      asked = header.reply != 0;
      const std::string marks =
          std::string((header.flags & kCallback) != 0 ? "c" : "") + (header.kind == Kind::kUnordered ? "u" : "");
      add(marks.c_str(), header.token.index);
    });
    CHECK_EQ(item.calls, calls);
    CHECK_EQ(item.asked, asked);
    items.push_back((item.what == Item::kLarge ? "large " : "") + one);
  }
  return items;
}

std::vector<std::string> Ends(const Batch &batch) {
  std::vector<std::string> ends;
  for (const Finished &one : batch.finished)
    ends.push_back(std::to_string(one.thread) + "." + std::to_string(one.epoch));
  return ends;
}

// Records without callbacks come together, one item for each stretch of one epoch's, headers included; text in one for
// each stretch of one thread's. What is unordered does not wait, what is in order waits for the epoch before; of what
// is for Python a batch has that of one thread.
void test_consecutive_records_come_together() {
  for (bool text : {true, false}) {
    World world(WhenFull::kWait, size_t{1} << 20);
    const uint64_t sink = text ? world.show_text() : 0;
    for (int i = 0; i < 2; ++i) world.drain.open(1, sink);
    world.drain.open(2, sink);
    Program other(world.publisher, 2, 0);
    InThread([&] {
      for (uint32_t epoch = 0; epoch < 2; ++epoch) {
        Program program(world.publisher, 1, epoch);
        for (int i = 0; i < 3; ++i) program.record(static_cast<size_t>(10 * i));
        program.unordered(20);
        program.close();
      }
    });
    InThread([&] {
      other.record(8);
      other.record(8);
    });
    Batch batch = world.step();
    std::vector<std::string> ends = Ends(batch);
    if (text) {
      CHECK_SEEN(Items(batch), {"text 1.0:0,1,2,u0,u0", "text 2.0:0,1", "text 1.1:0,1,2"});
      CHECK_EQ(batch.run, ReleaseOrder::kNobody);
    } else {
      CHECK_SEEN(Items(batch), {"1.0:0,1,2,u0", "1.1:u0,0,1,2"});
      CHECK_EQ(batch.run, 1u);
      for (const Item &item : batch.items) CHECK(item.what == Item::kRecords);
      Batch next = world.step();
      CHECK_SEEN(Items(next), {"2.0:0,1"});
      CHECK_EQ(next.run, 2u);
      CHECK(next.finished.empty());
      world.resume(batch);
      world.resume(next);
    }
    while (ends.size() < 2)
      for (const std::string &one : Ends(world.step())) ends.push_back(one);
    CHECK_SEEN(ends, {"1.0", "1.1"});
  }
}

// A large record stands between the others by itself, with its own memory.
void test_large_record_comes_by_itself() {
  World world;
  world.drain.open(1, 0);
  InThread([&] {
    Program program(world.publisher, 1, 0);
    for (size_t size : {10, 10, 2000, 10}) program.record(size);
  });
  const Batch batch = world.step();
  CHECK_SEEN(Items(batch), {"1.0:0,1", "large 1.0:2", "1.0:3"});
  CHECK_EQ(batch.run, 1u);
  CHECK(batch.items.at(1).block != nullptr);
}

// A batch ends with the callbacks of one thread: it says whose, all that follows them in their program comes with them,
// and nothing of another thread's does, whose callbacks come in the next batch, though the first have not run yet. Text
// that came before stays ahead of them.
void test_batch_ends_with_one_threads_callbacks() {
  World world(WhenFull::kWait, size_t{1} << 20);
  world.drain.open(1, 0);
  world.drain.open(2, 0);
  world.drain.open(3, world.show_text());
  for (uint32_t thread : {3u, 1u, 2u})
    InThread([&] {
      Program program(world.publisher, thread, 0);
      program.record(8);
      if (thread != 3) {
        program.callback();
        program.record(8);
        program.callback(2000);
      }
      program.close();
    });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"text 3.0:0", "1.0:0,c1,2,c3"});
  CHECK_EQ(first.run, 1u);
  CHECK_SEEN(Ends(first), {"1.0"}); // once its callbacks have run

  const Batch second = world.step();
  CHECK_SEEN(Items(second), {"2.0:0,c1,2,c3"});
  CHECK_EQ(second.run, 2u);
  CHECK_SEEN(Ends(second), {"2.0"});

  // Others' epochs end meanwhile.
  Batch last = world.step();
  while (last.finished.empty()) last = world.step();
  CHECK_SEEN(Ends(last), {"3.0"});
  world.resume(second);
  world.resume(first);
}

// A held stream's later records wait until it is resumed; its next callbacks are a batch again.
void test_held_thread_waits_for_its_resumption() {
  World world;
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  InThread([&] {
    Program(world.publisher, 1, 0).callback();
    Close(world.publisher, 1, 0, {{0, 1}});
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"1.0:c0"});
  CHECK_SEEN(Ends(first), {"1.0"});
  InThread([&] {
    Program program(world.publisher, 1, 1);
    program.callback();
    program.close();
  });
  for (int i = 0; i < 3; ++i) {
    const Batch none = world.step(milliseconds(1));
    CHECK(none.items.empty() && none.finished.empty());
    CHECK_EQ(none.run, ReleaseOrder::kNobody);
  }
  world.resume(first);
  Batch second = world.step();
  std::vector<std::string> ends = Ends(second);
  while (second.run == ReleaseOrder::kNobody) {
    CHECK(second.items.empty());
    second = world.step();
    for (const std::string &one : Ends(second)) ends.push_back(one);
  }
  CHECK_SEEN(Items(second), {"1.1:c0"});
  world.resume(second);
  while (ends.empty()) ends = Ends(world.step());
  CHECK_SEEN(ends, {"1.1"});
}

// What is unordered and comes behind another thread's callbacks is in the next batch, before they are resumed; nothing
// of it is lost, and its epoch ends after it. Records for Python are in one of their own for each thread.
void test_unordered_records_do_not_wait_behind_callbacks() {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    world.drain.open(1, sink);
    world.drain.open(2, sink);
    InThread([&] { Program(world.publisher, 1, 0).unordered_callback(); });
    InThread([&] {
      Program program(world.publisher, 2, 0);
      program.unordered(8);
      program.unordered(2000);
      program.record(8);
      program.close();
      CHECK(world.plain(/*ordered=*/false, 8));
    });
    const Batch first = world.step();
    CHECK_SEEN(Items(first), {"1.0:cu0"});
    CHECK_EQ(first.run, 1u);
    CHECK_EQ(first.plain_released, uint64_t{0});
    CHECK_EQ(first.plain_in_run, uint64_t{0});
    std::vector<uint32_t> runs;
    std::vector<std::string> items;
    std::vector<std::string> ends;
    uint64_t plain_released = 0;
    while (ends.empty() || plain_released == 0) {
      const Batch next = world.play();
      if (!next.items.empty()) runs.push_back(next.run);
      for (const std::string &one : Items(next)) items.push_back(one);
      for (const std::string &one : Ends(next)) ends.push_back(one);
      plain_released = next.plain_released;
      CHECK(!text || plain_released == 1); // at once
    }
    if (text) {
      CHECK_SEEN(items, {"text 2.0:u0,u0", "text plain:u0", "text 2.0:0"});
      for (const uint32_t run : runs) CHECK_EQ(run, ReleaseOrder::kNobody);
    } else {
      CHECK_SEEN(items, {"2.0:u0", "large 2.0:u0", "2.0:0", "plain:u0"});
      CHECK((runs == std::vector<uint32_t>{2, kPlainThread}));
    }
    CHECK_EQ(plain_released, uint64_t{1});
    CHECK_SEEN(ends, {"2.0"});
    world.resume(first);
  }
}

// Records without a plan begin a run as callbacks do: the batch is their thread's, other threads' unordered ones come
// in the next one, before it is resumed, and those in order stay.
void test_records_without_a_plan_begin_a_run() {
  for (bool ordered : {true, false})
    for (size_t size : {size_t{8}, size_t{2000}}) { // together with others or by itself
      World world;
      world.drain.open(1, 0);
      world.drain.open(2, world.show_text());
      world.drain.open(3, 0);
      InThread([&] {
        Program program(world.publisher, 1, 0);
        if (ordered)
          program.record(size);
        else
          program.unordered(size);
      });
      InThread([&] {
        Program text(world.publisher, 2, 0);
        text.unordered(8);
        text.record(8);
        Program python(world.publisher, 3, 0);
        python.unordered(8);
        python.record(8);
        Program(world.publisher, 1, 0).unordered(8);
      });
      const Batch first = world.step();
      CHECK_EQ(first.run, 1u);
      CHECK_EQ(first.held(), 1u);
      const std::string one = ordered ? "0" : "u0";
      if (size == 8)
        CHECK_SEEN(Items(first), {"1.0:" + one + ",u0"});
      else
        CHECK_SEEN(Items(first), {"large 1.0:" + one, "1.0:u0"});
      for (const Item &item : first.items) CHECK(!item.calls && !item.asked);

      const Batch second = world.step();
      CHECK_SEEN(Items(second), {"text 2.0:u0", "3.0:u0,0"});
      CHECK_EQ(second.run, 3u);
      const Batch third = world.step();
      CHECK_SEEN(Items(third), {"text 2.0:0"});
      CHECK_EQ(third.run, ReleaseOrder::kNobody);

      // The thread is held as by callbacks.
      InThread([&] {
        Program program(world.publisher, 1, 0);
        if (ordered)
          CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, 1), 8));
        else
          program.record(8);
      });
      CHECK(world.step(milliseconds(1)).items.empty());
      world.resume(first);
      Batch last = world.step();
      while (last.items.empty()) last = world.step();
      CHECK_SEEN(Items(last), {ordered ? "1.0:1" : "1.0:0"});
    }
}

// All the text that came before the first record for Python stays in the batch, whosever it is, ahead of it; after it
// only the text of its own thread.
void test_text_stays_ahead_of_a_run() {
  World world;
  const uint64_t sink = world.show_text();
  for (uint32_t thread : {1u, 2u, 3u}) world.drain.open(thread, sink);
  world.drain.open(1, 0);
  InThread([&] {
    CHECK(world.plain(/*ordered=*/false, 8));
    for (uint32_t thread : {1u, 2u}) Program(world.publisher, thread, 0).unordered(8);
    Program(world.publisher, 1, 1).unordered(8); // for Python
    CHECK(world.plain(/*ordered=*/false, 8));
    for (uint32_t thread : {3u, 1u}) Program(world.publisher, thread, 0).unordered(8);
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"text plain:u0", "text 1.0:u0", "text 2.0:u0", "1.1:u0", "text 1.0:u0"});
  CHECK_EQ(first.run, 1u);
  CHECK_EQ(first.plain_released, uint64_t{1});
  CHECK_EQ(first.plain_in_run, uint64_t{0});
  const Batch second = world.step();
  CHECK_SEEN(Items(second), {"text plain:u0", "text 3.0:u0"});
  CHECK_EQ(second.run, ReleaseOrder::kNobody);
  CHECK_EQ(second.plain_released, uint64_t{2});
}

// Unordered callbacks of several threads that come together are run one thread's a batch, and nothing of another
// thread's is behind them.
void test_carried_callbacks_are_run_one_threads_a_batch() {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    for (uint32_t thread = 1; thread <= 4; ++thread) world.drain.open(thread, sink);
    InThread([&] {
      for (uint32_t thread = 1; thread <= 3; ++thread) Program(world.publisher, thread, 0).unordered_callback();
      Program(world.publisher, 4, 0).unordered(8);
      Program(world.publisher, 2, 0).unordered_callback();
      Program(world.publisher, 1, 0).unordered(8);
    });
    // step() sees that nothing of another thread's waits for a run.
    const Batch first = world.step();
    CHECK_EQ(first.run, 1u);
    if (text)
      CHECK_SEEN(Items(first), {"1.0:cu0", "text 1.0:u0"});
    else
      CHECK_SEEN(Items(first), {"1.0:cu0,u0"});
    const Batch second = world.step();
    CHECK_EQ(second.run, 2u);
    CHECK_SEEN(Items(second), {"2.0:cu0", "2.0:cu0"});
    const Batch third = world.step();
    CHECK_EQ(third.run, 3u);
    CHECK_SEEN(Items(third), {"3.0:cu0"});
    const Batch last = world.step();
    CHECK_EQ(last.run, text ? ReleaseOrder::kNobody : 4u);
    CHECK_SEEN(Items(last), {text ? "text 4.0:u0" : "4.0:u0"});
    CHECK_EQ(world.unordered_seen, uint64_t{6});
  }
}

// Plain records that come with records of plain programs for Python count as replayed when these are resumed, those
// before them at once.
void test_plain_records_in_a_run_count_when_it_is_resumed() {
  for (bool text : {true, false}) {
    World world;
    if (text) world.show_text();
    InThread([&] {
      CHECK(world.plain(true, 8));
      CHECK(world.plain(true, 8, kCallback));
      CHECK(world.plain(true, 8));
      CHECK(world.plain(false, 8));
      CHECK(world.plain(false, 8, kCallback));
    });
    const Batch first = world.step();
    if (text)
      CHECK_SEEN(Items(first), {"text plain:0", "plain:c1", "text plain:2,u0", "plain:cu0"});
    else
      CHECK_SEEN(Items(first), {"plain:0,c1,2,u0,cu0"});
    const uint64_t before = text ? 1 : 0;
    CHECK_EQ(first.run, kPlainThread);
    CHECK_EQ(first.plain_released, before);
    CHECK_EQ(first.plain_in_run, 5 - before);
    world.drain.open(1, 0); // keeps the drain awake
    CHECK_EQ(world.step(milliseconds(1)).plain_released, before);
    world.resume(first);
    const Batch resumed = world.step();
    CHECK_EQ(resumed.plain_released, uint64_t{5});
    CHECK_EQ(resumed.plain_in_run, uint64_t{0});
  }
}

// A run of plain records none of which is ordered holds no stream, only the forgetting of sites: what is plain and in
// order, and a program dispatched behind it, go on. As soon as one of its records is ordered, they wait.
void test_run_of_unordered_plain_records_holds_nothing() {
  for (uint16_t flags : {uint16_t{0}, uint16_t{kCallback}})
    for (bool ordered : {false, true}) {
      World world;
      world.sites.retain(kSite);
      InThread([&] {
        CHECK(world.plain(false, 8, flags));
        if (ordered) CHECK(world.plain(true, 8, flags));
        CHECK(world.plain(false, 8, flags));
      });
      world.drain.release_site(kSite);
      const Batch first = world.step();
      CHECK_EQ(first.items.size(), size_t{1});
      CHECK_EQ(first.items.at(0).calls, flags == kCallback);
      CHECK_EQ(first.run, kPlainThread);
      CHECK_EQ(first.ordered_run, ordered);
      CHECK_EQ(first.held(), ordered ? kPlainThread : ReleaseOrder::kNoThread);
      CHECK_EQ(first.plain_in_run, uint64_t{ordered ? 3u : 2u});

      InThread([&] { CHECK(world.plain(true, 8)); });
      if (ordered) {
        world.drain.open(1, 0); // keeps the drain awake
        InThread([&] {
          Program program(world.publisher, 1, 0);
          program.record(8);
          program.close();
        });
        for (int i = 0; i < 4; ++i) {
          const Batch none = world.step(milliseconds(1));
          CHECK(none.items.empty() && none.finished.empty() && none.forgotten.empty());
        }
        world.resume(first);
        Batch next = world.step();
        while (next.items.empty()) next = world.step();
        CHECK_SEEN(Items(next), {"plain:1"});
        CHECK_EQ(next.plain_released, uint64_t{3});
        world.resume(next);
        next = world.step();
        while (next.items.empty()) next = world.step();
        CHECK_SEEN(Items(next), {"1.0:0"});
        world.resume(next);
        world.until_finished(1);
        continue;
      }
      Batch next = world.step();
      CHECK_SEEN(Items(next), {"plain:0"});
      CHECK_EQ(next.held(), kPlainThread);
      CHECK_EQ(next.plain_released, uint64_t{0});
      world.resume(next);
      world.drain.open(1, 0);
      InThread([&] {
        Program program(world.publisher, 1, 0);
        program.record(8);
        program.close();
      });
      while (world.finished == 0) CHECK(world.play().forgotten.empty());
      CHECK_EQ(world.ordered_seen, uint64_t{1});
      CHECK(world.sites.holders(kSite) == 0 && world.sites.any_dying());
      world.resume(first);
      next = world.step();
      CHECK_EQ(next.plain_released, uint64_t{3});
      CHECK((next.forgotten == std::vector<uint64_t>{kSite}));
    }
}

// A resumption is progress: it wakes the drain, and who waits for plain records hears of it by a batch of its own.
void test_resume_wakes_the_drain() {
  for (int i = 0; i < 100; ++i) {
    World world;
    const bool ordered = i % 2 == 0; // and holds something, or not
    InThread([&] { CHECK(world.plain(ordered, 8, static_cast<uint16_t>(i % 4 < 2 ? kCallback : 0))); });
    const Batch batch = world.step();
    CHECK_EQ(batch.plain_released, uint64_t{0});
    std::thread host([&] { world.resume(batch); });
    CHECK_EQ(world.step(std::chrono::hours(1)).plain_released, uint64_t{1});
    host.join();
  }
}

// A site is forgotten when its last holder has gone and every program dispatched by then has ended, not before, and
// whatever is dispatched later.
void test_site_is_forgotten_when_its_programs_have_ended() {
  World world;
  for (int i = 0; i < 2; ++i) world.sites.retain(kSite, "text");
  world.drain.open(1, 0);
  world.drain.open(2, 0);
  world.drain.release_site(kSite);
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  world.drain.release_site(kSite); // the last
  world.drain.open(3, 0);
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  for (uint32_t thread : {2u, 1u}) {
    CHECK(world.sites.description(kSite) == "text");
    InThread([&] {
      Program program(world.publisher, thread, 0);
      program.record(8);
      program.close();
    });
    Batch batch = world.play();
    for (; batch.finished.empty(); batch = world.play()) CHECK(batch.forgotten.empty());
    if (thread == 2) {
      CHECK(batch.forgotten.empty());
    } else {
      while (batch.forgotten.empty()) batch = world.play();     // what was in the run has been replayed
      CHECK((batch.forgotten == std::vector<uint64_t>{kSite})); // thread 3's program runs on
    }
  }
  CHECK(world.sites.description(kSite).empty());
  CHECK(world.step(milliseconds(1)).forgotten.empty());
}

// Nor is it forgotten while a plain record that was published by then has not left, or is being replayed.
void test_site_is_forgotten_when_its_plain_records_have_left() {
  for (bool text : {true, false}) {
    World world;
    if (text) world.show_text();
    world.sites.retain(kSite);
    const uint32_t missing = world.publisher.plain_index.fetch_add(1);
    InThread([&] { CHECK(world.plain(true, 8)); });
    world.drain.release_site(kSite);
    const Batch none = world.step(milliseconds(1));
    CHECK(none.items.empty() && none.forgotten.empty());
    InThread([&] {
      CHECK(Publish(world.publisher, Kind::kOrdered, {kPlainThread << kDomainBits, 0, 0, missing}, 8));
      world.drain.plain_published();
    });
    Batch batch = world.step();
    if (text) {
      CHECK_SEEN(Items(batch), {"text plain:0,1"});
    } else {
      CHECK_SEEN(Items(batch), {"plain:0,1"});
      CHECK(batch.forgotten.empty());
      world.resume(batch);
      batch = world.step();
    }
    CHECK((batch.forgotten == std::vector<uint64_t>{kSite}));
  }
}

// While any stream is held, and with callbacks that have not run, no site is forgotten.
void test_no_site_is_forgotten_while_a_stream_is_held() {
  World world;
  world.sites.retain(kSite);
  world.drain.release_site(kSite); // of which nothing can come
  world.drain.open(1, 0);
  InThread([&] { Program(world.publisher, 1, 0).callback(); });
  const Batch run = world.step();
  CHECK_EQ(run.run, 1u);
  CHECK(run.forgotten.empty());
  CHECK(world.step(milliseconds(1)).forgotten.empty());
  world.resume(run);
  CHECK((world.step().forgotten == std::vector<uint64_t>{kSite}));
}

// The release of a site wakes the drain.
void test_release_site_wakes_the_drain() {
  World world;
  for (uint64_t i = 0; i < 100; ++i) {
    world.sites.retain(i);
    std::thread host([&] { world.drain.release_site(i); });
    CHECK((world.step(std::chrono::hours(1)).forgotten == std::vector<uint64_t>{i}));
    host.join();
  }
}

// Two threads publish, `first` and `second`, and the drain takes a batch. After it has taken what is in the first one's
// ring, and before it looks into the second one's, they publish more: `behind` the scan, and then `before` it.
Batch DuringScan(World &world, const std::function<void()> &first, const std::function<void()> &second,
                 const std::function<void()> &behind, const std::function<void()> &before) {
  std::atomic<int> stage{0};
  const auto await = [&](int awaited) {
    while (stage < awaited) std::this_thread::yield();
  };
  std::thread one([&] {
    first();
    stage = 1;
    await(3);
    behind();
    stage = 4;
    await(6);
  });
  std::thread two([&] {
    await(1);
    second();
    stage = 2;
    await(4);
    before();
    stage = 5;
    await(6);
  });
  await(2);
  std::vector<Lane *> lanes;
  CHECK(world.publisher.for_each_lane([&](Lane &lane) {
    lanes.push_back(&lane);
    return true;
  }));
  CHECK_EQ(lanes.size(), size_t{2});
  Batch batch;
  std::unique_lock held(lanes[1]->consumer);
  std::thread drain([&] { batch = world.step(); });
  while (lanes[0]->ring.used() != 0) std::this_thread::yield();
  stage = 3;
  await(5);
  held.unlock();
  drain.join();
  stage = 6;
  one.join();
  two.join();
  return batch;
}

// A site whose last holder goes while the drain scans is not forgotten before the program that was dispatched
// meanwhile, of which the drain has not read yet.
void test_site_outlives_a_program_dispatched_during_a_scan() {
  World world(WhenFull::kWait, size_t{1} << 20);
  const uint64_t sink = world.show_text(); // so that no run keeps the site
  world.sites.retain(kSite);
  Batch batch = DuringScan(
      world, [&] { CHECK(world.plain(/*ordered=*/false, 8)); },
      [&] { // fills the batch, so that this scan is its last
        for (int i = 0; i < 6000; ++i) CHECK(world.plain(/*ordered=*/false, 8));
      },
      [&] {
        world.drain.open(1, sink);
        world.drain.release_site(kSite);
      },
      [] {});
  CHECK_EQ(batch.run, ReleaseOrder::kNobody);
  CHECK(batch.forgotten.empty());
  InThread([&] {
    Program program(world.publisher, 1, 0);
    program.record(8);
    program.close();
  });
  while (world.finished == 0) {
    CHECK(batch.forgotten.empty());
    batch = world.step();
  }
  CHECK((batch.forgotten == std::vector<uint64_t>{kSite}));
}

// A program's records leave after the plain records that were published before its dispatch, though a scan may see only
// the program's, because it had passed the ring of the others.
void test_program_follows_earlier_plain_records() {
  for (bool text : {true, false}) {
    World world;
    const uint64_t sink = text ? world.show_text() : 0;
    const Batch batch = DuringScan(
        world, [&] { CHECK(world.plain(/*ordered=*/false, 8)); }, [&] { CHECK(world.plain(/*ordered=*/false, 8)); },
        [&] { CHECK(world.plain(/*ordered=*/true, 8)); },
        [&] {
          world.drain.open(1, sink);
          Program program(world.publisher, 1, 0);
          program.record(8);
          program.close();
        });
    std::vector<std::string> items = Items(batch);
    if (batch.run != ReleaseOrder::kNobody) world.resume(batch);
    while (world.finished == 0)
      for (const std::string &one : Items(world.play())) items.push_back(one);
    if (text)
      CHECK_SEEN(items, {"text plain:u0,u0,0", "text 1.0:0"});
    else
      CHECK_SEEN(items, {"plain:u0,u0,0", "1.0:0"});
  }
}

// What was recorded before a program's failure was known and what comes after it do not come together, even in one
// batch: only of the latter the host is told that its program had failed.
void test_records_before_and_after_a_failure_are_apart() {
  for (uint16_t flags : {uint16_t{kCallback}, uint16_t{0}}) {
    World world;
    world.drain.open(1, 0);
    const auto publish = [&](uint32_t index) {
      CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, index), 8, flags));
    };
    const Batch batch = DuringScan(
        world, [&] { publish(0); }, [&] { publish(1); }, [] {},
        [&] {
          world.drain.fail(1, 0);
          world.drain.open(2, 0);
          Program(world.publisher, 2, 0).unordered(8); // of which the drain has not heard: it reads what it was told
          publish(2);
          publish(3);
        });
    if (flags == kCallback)
      CHECK_SEEN(Items(batch), {"1.0:c0,c1", "1.0:c2,c3"});
    else
      CHECK_SEEN(Items(batch), {"1.0:0,1", "1.0:2,3"});
    CHECK(!batch.items.at(0).info.failed);
    CHECK(batch.items.at(1).info.failed);
    CHECK_EQ(batch.run, 1u);
    const Batch carried = world.step();
    CHECK_SEEN(Items(carried), {"2.0:u0"});
    CHECK(!carried.items.at(0).info.failed);
    world.resume(carried);
    world.resume(batch);
    world.until_finished(1);
  }
}

// A callback that somebody waits for is the last of its batch: what follows it in its program comes when it is resumed,
// in as many batches as there are such callbacks.
void test_awaited_callback_is_the_last_of_its_batch() {
  for (bool text : {true, false}) {
    World world;
    world.drain.open(1, text ? world.show_text() : 0);
    InThread([&] {
      Program program(world.publisher, 1, 0);
      program.callback();
      program.record(8);
      program.callback(8, /*reply=*/1);
      program.record(8);
      program.callback(8, /*reply=*/2);
      program.record(8);
      program.close();
    });
    std::vector<std::vector<std::string>> expected{{"1.0:c0,1,c2"}, {"1.0:3,c4"}, {"1.0:5"}};
    if (text) expected = {{"1.0:c0", "text 1.0:1", "1.0:c2"}, {"text 1.0:3", "1.0:c4"}, {"text 1.0:5"}};
    for (const std::vector<std::string> &items : expected) {
      const Batch batch = world.step();
      CHECK_SEEN(Items(batch), (items));
      CHECK(batch.finished.empty() || items == expected.back());
      const Batch none = world.step(milliseconds(1));
      CHECK(none.items.empty());
      CHECK(batch.run == 1 || items == expected.back());
      if (batch.run != ReleaseOrder::kNobody) world.resume(batch);
    }
    world.until_finished(1);
  }
}

// The same for records that were parked, across domains, with a failure over gaps, and for plain ones.
void test_parked_awaited_callbacks_come_one_by_one() {
  for (int mode = 0; mode < 4; ++mode) {
    const bool fails = mode % 2 != 0;
    const bool text = mode / 2 != 0;
    World world;
    world.gaps_allowed = true;
    world.drain.open(1, text ? world.show_text() : 0);
    InThread([&] {
      // Early: with the failure, 0 never comes.
      for (uint32_t domain : {0u, 1u})
        for (uint32_t index : {2u, 1u})
          CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, domain, 0, index), 8, kCallback, /*reply=*/1));
      if (!fails) {
        for (uint32_t domain : {0u, 1u}) CHECK(Publish(world.publisher, Kind::kOrdered, MakeToken(1, domain, 0, 0), 8));
        Close(world.publisher, 1, 0, {{0, 3}, {1, 3}});
      }
    });
    if (fails) world.drain.fail(1, 0);
    size_t callbacks = 0;
    while (world.finished == 0) {
      const Batch batch = world.step();
      size_t here = 0;
      for (const Item &item : batch.items) {
        CHECK_EQ(here, size_t{0}); // nothing behind one that somebody waits for
        if (item.asked) ++here;
        CHECK_EQ(item.info.failed, fails);
      }
      callbacks += here;
      if (text || fails) CHECK_EQ(batch.run, here == 0 ? ReleaseOrder::kNobody : 1u);
      if (here != 0) {
        CHECK(batch.finished.empty());
        CHECK_EQ(batch.run, 1u);
      }
      if (batch.run != ReleaseOrder::kNobody) world.resume(batch);
    }
    CHECK_EQ(callbacks, size_t{4});
  }
  World world;
  InThread([&] {
    for (uint32_t index : {1u, 0u})
      CHECK(Publish(world.publisher, Kind::kOrdered, {kPlainThread << kDomainBits, 0, 0, index}, 8, kCallback, 1));
    for (int i = 0; i < 2; ++i) world.drain.plain_published();
  });
  const Batch first = world.step();
  CHECK_SEEN(Items(first), {"plain:c0"});
  world.resume(first);
  Batch second = world.step();
  while (second.items.empty()) second = world.step();
  CHECK_SEEN(Items(second), {"plain:c1"});
}

// Everything unordered of a thread has left when its epoch ends, though it came between callbacks of several threads.
void test_carried_records_leave_before_their_epoch_ends() {
  World world;
  for (uint32_t thread = 1; thread <= 3; ++thread) world.drain.open(thread, 0);
  InThread([&] {
    Program(world.publisher, 1, 0).unordered_callback();
    Program(world.publisher, 2, 0).unordered_callback();
    Program(world.publisher, 3, 0).unordered(8);
    Program(world.publisher, 2, 0).unordered(8);
    for (uint32_t thread = 1; thread <= 3; ++thread) Program(world.publisher, thread, 0).close();
  });
  world.until_finished(3); // step() sees that nothing follows the end of its epoch
  CHECK_EQ(world.unordered_seen, uint64_t{4});
}

// Text is that of one thread and one place; callbacks are never formatted, and nothing is while Python wants to see
// all.
void test_what_is_formatted() {
  World world;
  Plan plan(1);
  plan[0].literal = "x\n";
  world.sites.set_plan(kSite, plan);
  world.drain.open(1, /*sink=*/3);
  world.drain.open(2, /*sink=*/3);
  world.drain.open(3, /*sink=*/0);
  for (uint32_t thread = 1; thread <= 3; ++thread)
    InThread([&] {
      Program program(world.publisher, thread, 0);
      for (int i = 0; i < 2; ++i) program.record(2000);
      if (thread == 3) program.callback();
    });
  const Batch first = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(first), {"text 1.0:#2", "text 2.0:#2", "large 3.0:0", "large 3.0:1", "3.0:c2"});
  CHECK(first.items.at(0).data == "x\nx\n");
  world.resume(first);
  world.drain.show_python(true);
  world.drain.open(4, /*sink=*/3);
  InThread([&] { Program(world.publisher, 4, 0).record(8); });
  Batch batch = world.drain.next_batch(kPatience);
  while (batch.items.empty()) batch = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(batch), {"4.0:0"});
  CHECK_EQ(batch.run, 4u);
  world.resume(batch);
  world.drain.show_python(false);
  world.drain.open(5, /*sink=*/3);
  InThread([&] {
    Program program(world.publisher, 5, 0);
    program.callback();
    program.record(8);
  });
  batch = world.drain.next_batch(kPatience);
  while (batch.items.empty()) batch = world.drain.next_batch(kPatience);
  CHECK_SEEN(Items(batch), {"5.0:c0", "text 5.0:#1"});
}

// A record that somebody waits for and nobody will ever want is answered with a failure, and counted; what comes before
// its failed epoch has ended is for the host to answer.
void test_late_awaited_record_is_answered() {
  World world;
  world.gaps_allowed = true;
  std::vector<std::string> heard;
  std::vector<uint32_t> numbers;
  for (int i = 0; i < 2; ++i)
    numbers.push_back(world.replies.ask([&, i](const Answer &answer) {
      CHECK(!answer.error.empty());
      heard.push_back(std::to_string(i));
      return Replies::GoOn();
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
void test_failure_answers_replicated_waiters() {
  World world;
  std::vector<std::string> heard;
  const auto ask = [&](uint32_t thread, uint32_t epoch) {
    const std::string name = std::to_string(thread) + "." + std::to_string(epoch);
    return world.replies.ask_replicated({MakeToken(thread, 0, epoch, 0)}, 2, [&heard, name](const Answer &answer) {
      heard.push_back(name + (answer.error.empty() ? "" : "!"));
      return Replies::GoOn();
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
void test_late_replicated_device_is_answered() {
  for (uint32_t index : {0u, 1u}) { // leaves at once, is parked
    World world;
    world.gaps_allowed = true;
    std::vector<std::string> heard;
    const auto publish = [&](const std::string &name) {
      const Token token = MakeToken(1, 0, 0, index);
      const uint32_t number = world.replies.ask_replicated({token}, 2, [&heard, name](const Answer &answer) {
        heard.push_back(name + (answer.error.empty() ? "" : "!"));
        return Replies::GoOn();
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
      if (batch.run != ReleaseOrder::kNobody) run = std::move(batch);
    }
    CHECK_SEEN(heard, {index == 0 ? "first" : "first!", "late!"});
    world.resume(run);
    world.until_finished(1);
  }
}

// A device whose record waits in its ring, because too much is parked, gets on though what is parked falls below the
// limit between any two scans, as another thread's programs come and go.
void test_parking_grows_beside_a_steady_thread() {
  World world;
  for (int i = 0; i < 2; ++i) world.drain.open(1, 0);
  world.publisher.barriers = 1; // the drain does not pace itself
  world.step(milliseconds(1));
  std::atomic<uint32_t> wanted{0};
  std::atomic<uint32_t> there{0};
  std::atomic<bool> over{false};
  std::thread steady([&] { // one program more between two batches
    while (!over)
      if (const uint32_t epoch = there; epoch < wanted) {
        world.drain.open(2, 0);
        Program program(world.publisher, 2, epoch);
        program.record(8);
        program.close();
        ++there;
      } else {
        std::this_thread::yield();
      }
  });
  const auto one_more = [&] {
    ++wanted;
    while (there < wanted) std::this_thread::yield();
  };
  for (int i = 0; i < 10; ++i) one_more();
  std::atomic<bool> done{false};
  std::thread device([&] {
    Program later(world.publisher, 1, 1);
    for (int i = 0; i < 800; ++i) later.record(16);
    later.close();
    Program(world.publisher, 1, 0).close();
    done = true;
  });
  const auto start = std::chrono::steady_clock::now();
  while (!done) {
    world.play();
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    one_more();
  }
  over = true;
  steady.join();
  device.join();
  world.until_finished(2 + there);
}

// Who is answered so is called with no lock held: it may run the rest of its program, which may publish from here.
void test_late_awaited_record_is_answered_without_a_lock() {
  World world;
  std::vector<Lane *> lanes;
  bool called = false;
  const uint32_t number = world.replies.ask([&](const Answer &) {
    called = true;
    InThread([&] {
      for (Lane *lane : lanes) {
        std::unique_lock consumer(lane->consumer, std::try_to_lock);
        CHECK(consumer.owns_lock());
      }
    });
    return Replies::GoOn();
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
  CHECK(world.publisher.for_each_lane([&](Lane &lane) {
    lanes.push_back(&lane);
    return true;
  }));
  world.step(milliseconds(1));
  CHECK(called);
  over = true;
  late.join();
}

// What somebody waits for is never dropped, small or large, ordered or not, whatever else the full ring drops.
void test_awaited_record_is_never_dropped() {
  for (WhenFull when_full : {WhenFull::kDropNewest, WhenFull::kDropOldest})
    for (size_t size : {size_t{100}, size_t{5000}})
      for (bool others_too : {false, true}) {
        World world(when_full);
        world.publisher.barriers = 1; // the drain does not pace itself
        world.drain.open(1, 0);
        uint64_t dropped = 0;
        constexpr uint32_t kRecords = 100;
        // Nothing is drained before all is published.
        InThread([&] {
          Random random(size + others_too);
          uint32_t ordered = 0;
          for (uint32_t i = 0; i < kRecords; ++i) {
            const Kind kind = random.one_in(3) ? Kind::kUnordered : Kind::kOrdered;
            const Token token = MakeToken(1, 0, 0, kind == Kind::kOrdered ? ordered++ : 0);
            CHECK(Publish(world.publisher, kind, token, random.one_in(2) ? size : 8, kCallback, /*reply=*/i + 1));
            if (others_too)
              for (size_t other : {size_t{50}, size})
                Publish(world.publisher, Kind::kOrdered, MakeToken(1, 0, 0, ordered++), other);
          }
          Close(world.publisher, 1, 0, {{0, ordered}});
        });
        dropped = world.publisher.stats.dropped.load();
        CHECK_EQ(dropped > 0, others_too);
        world.until_finished(1);
        CHECK_EQ(world.awaited_seen, uint64_t{kRecords});
        CHECK_EQ(world.publisher.stats.dropped.load(), dropped);
        world.check_nothing_lost(kRecords + (others_too ? 2 * kRecords : 0));
      }
}

// The same for plain records, and for a producer that waits for room when nothing drains any more.
void test_awaited_record_outlives_the_end() {
  for (size_t size : {size_t{100}, size_t{5000}}) {
    World world;
    world.publisher.barriers = 1; // the drain does not pace itself
    constexpr uint32_t kRecords = 80;
    std::thread producer([&] {
      for (uint32_t i = 0; i < kRecords; ++i) CHECK(world.plain(i % 2 == 0, size, kCallback, /*reply=*/i + 1));
    });
    while (world.publisher.stats.waited.load() == 0) std::this_thread::yield();
    world.drain.stop();
    producer.join();
    while (world.plain_seen < kRecords) {
      const Batch batch = world.step();
      CHECK(batch.stopped);
      if (batch.run != ReleaseOrder::kNobody) world.resume(batch);
    }
    CHECK_EQ(world.publisher.stats.dropped.load(), uint64_t{0});
    CHECK_EQ(world.awaited_seen, uint64_t{kRecords});
  }
}

bool Hurried(Publisher &publisher) {
  std::lock_guard lock(publisher.wake_mutex);
  return publisher.hurried;
}

// The first that stands by leads; an offer that nobody took is taken back, and again; who has not offered, or does not
// lead, takes nothing back.
void test_lead_is_taken_and_taken_back() {
  World world;
  CHECK(world.drain.stand_by());
  CHECK(!world.drain.reclaim());
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(world.drain.offer(), 0);
    InThread([&] { CHECK(!world.drain.reclaim()); });
    CHECK(world.drain.reclaim());
    CHECK(!world.drain.reclaim());
  }
  world.drain.leave();
  InThread([&] {
    CHECK(world.drain.stand_by());
    world.drain.leave();
  });
  CHECK(world.drain.stand_by());
}

// An offer is hurried by who says so, before it is made or after, and by no publication: not even by one of the
// offering thread's own for which somebody waits.
void test_offer_is_hurried_on_request() {
  World world;
  std::thread([&] {
    world.drain.open(2, 0);
    CHECK(world.drain.stand_by());
    world.drain.offer();
    CHECK(world.plain(true, 8, kCallback, /*reply=*/1));
    InThread([&] { CHECK(Publish(world.publisher, Kind::kUnordered, MakeToken(2, 0, 0, 0), 8, kCallback, 2)); });
    world.publisher.wake();
    world.publisher.rouse();
    CHECK(!Hurried(world.publisher));
    CHECK(world.drain.reclaim());

    world.drain.offer();
    InThread([&] { world.publisher.hurry(); });
    CHECK(Hurried(world.publisher));
    CHECK(world.drain.reclaim()); // nobody stood by
    CHECK(!Hurried(world.publisher));

    world.publisher.hurry();
    world.drain.offer();
    CHECK(Hurried(world.publisher));
    CHECK(world.drain.reclaim());

    world.publisher.hurry();
    world.step(); // looks
    world.drain.offer();
    CHECK(!Hurried(world.publisher));
  }).join();
}

// An offer that is hurried is taken by whoever stands by: it leads then, takes the record for which somebody waits, and
// the thread that offered does not lead any more.
void test_hurried_offer_is_taken() {
  for (int i = 0; i < 50; ++i) {
    World world;
    world.drain.open(1, 0);
    std::atomic<bool> led{false};
    std::atomic<bool> taken{false};
    CHECK(world.drain.stand_by());
    std::thread other([&] {
      CHECK(world.drain.stand_by());
      CHECK(led);
      Batch batch = world.step();
      while (batch.run == ReleaseOrder::kNobody) batch = world.step();
      CHECK_SEEN(Items(batch), {"1.0:c0"});
      world.resume(batch);
      taken = true;
      world.drain.stop();
      world.drain.leave();
    });
    led = true;
    world.drain.offer();
    InThread([&] {
      Program(world.publisher, 1, 0).callback(8, /*reply=*/1);
      world.publisher.hurry();
    });
    while (!taken) std::this_thread::yield(); // as a function does which waits for that callback
    CHECK(!world.drain.reclaim());
    other.join();
  }
}

// An offer that lasts is taken though nobody hurries it, also by a thread that had slept while nothing was offered.
void test_lasting_offer_is_taken() {
  World world;
  world.drain.open(1, 0);
  std::atomic<bool> done{false};
  std::atomic<int> taken{0};
  CHECK(world.drain.stand_by());
  std::thread other([&] {
    while (world.drain.stand_by() && !done) {
      ++taken;
      world.drain.leave();
    }
    world.drain.leave();
  });
  for (int i = 0; i < 10; ++i) {
    world.drain.next_batch(milliseconds(30)); // meanwhile the other one may fall asleep
    const int before = taken;
    world.drain.offer();
    while (taken == before) std::this_thread::yield();
    CHECK(!world.drain.reclaim());
    while (!world.drain.stand_by()) std::this_thread::yield();
  }
  done = true;
  world.drain.leave();
  other.join();
}

// Two threads that stand by are enough: a third may end.
void test_third_that_stands_by_may_end() {
  World world;
  std::atomic<bool> done{false};
  CHECK(world.drain.stand_by());
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!done)
        if (world.drain.stand_by()) world.drain.leave();
    });
  // An offer that is taken back at once tells how many there are; if one took it, it leaves.
  for (bool both = false; !both;) {
    both = world.drain.offer() == 2;
    if (world.drain.reclaim()) continue;
    both = false;
    while (!world.drain.stand_by()) std::this_thread::yield();
  }
  InThread([&] { CHECK(!world.drain.stand_by()); });
  CHECK(!world.drain.stand_by());
  done = true;
  world.drain.stop();
  world.drain.leave();
  for (std::thread &other : others) other.join();
}

// Exactly one thread leads at a time, however often the lead is offered, taken, taken back and left; what the leaders
// share needs no lock.
void test_one_leads_at_a_time() {
  World world;
  constexpr int kThreads = 4;
  constexpr uint64_t kTurns = 4000;
  std::atomic<int> leading{0};
  std::atomic<bool> over{false};
  uint64_t turns = 0; // the leaders', as the drain's own things are
  const auto lead = [&](Random &random) {
    CHECK_EQ(leading.fetch_add(1), 0);
    if (++turns >= kTurns) over = true;
    if (random.one_in(4)) world.drain.next_batch(milliseconds(0));
    CHECK_EQ(leading.fetch_sub(1), 1);
  };
  world.drain.open(1, 0);       // the drain is awake
  world.publisher.barriers = 1; // and does not pace itself
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      Random random(static_cast<uint64_t>(i));
      while (!over) {
        if (!world.drain.stand_by()) {
          std::this_thread::yield();
          continue;
        }
        for (;;) {
          lead(random);
          if (over || random.one_in(8)) {
            world.drain.leave();
            break;
          }
          world.drain.offer();
          for (uint64_t wait = random.below(4); wait > 0; --wait) std::this_thread::yield();
          if (!world.drain.reclaim()) break;
        }
      }
    });
  std::thread hurrying([&] {
    while (!over) {
      world.publisher.wake();
      std::this_thread::yield();
    }
    world.drain.stop();
  });
  for (std::thread &thread : threads) thread.join();
  hurrying.join();
  CHECK(turns >= kTurns);
}

// The same with callbacks of several threads that wait for each other's: each leader offers while it runs its own, and
// whoever stands by runs the next, so that all have run at once before the first is resumed.
void test_callbacks_may_wait_for_each_other() {
  for (int round = 0; round < 20; ++round) {
    World world;
    constexpr uint32_t kStreams = 3;
    for (uint32_t thread = 1; thread <= kStreams; ++thread) world.drain.open(thread, 0);
    InThread([&] {
      for (uint32_t thread = 1; thread <= kStreams; ++thread) {
        Program program(world.publisher, thread, 0);
        program.callback();
        program.close();
      }
    });
    std::atomic<uint32_t> running{0};
    std::atomic<uint32_t> ended{0};
    std::vector<std::thread> leaders;
    for (uint32_t i = 0; i <= kStreams; ++i)
      leaders.emplace_back([&] {
        bool leads = false;
        while (ended < kStreams) {
          if (!leads) {
            leads = world.drain.stand_by();
            if (!leads) std::this_thread::yield();
            continue;
          }
          const Batch batch = world.step(milliseconds(1));
          ended += static_cast<uint32_t>(batch.finished.size());
          if (batch.run == ReleaseOrder::kNobody) continue;
          world.drain.offer();
          ++running;
          while (running < kStreams) std::this_thread::yield();
          world.resume(batch);
          leads = world.drain.reclaim();
        }
        if (leads) world.drain.leave();
      });
    for (std::thread &leader : leaders) leader.join();
    CHECK_EQ(ended.load(), kStreams);
  }
}

// stop() ends all, the one that leads and sleeps, and those that stand by, however long they have.
void test_stop_ends_all_that_stand_by() {
  for (int round = 0; round < 60; ++round) {
    World world;
    std::atomic<int> leaders{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        if (!world.drain.stand_by()) return;
        CHECK_EQ(leaders.fetch_add(1), 0);
        while (!world.drain.next_batch(std::chrono::hours(1)).stopped) {
        }
        CHECK_EQ(leaders.fetch_sub(1), 1);
        world.drain.leave();
      });
    if (round % 3 == 0)
      while (leaders == 0) std::this_thread::yield();
    world.drain.stop();
    for (std::thread &thread : threads) thread.join();
  }
}

// A program is known to have closed when all its devices have; one that failed on the way is forgotten.
void test_program_has_closed_when_all_devices_have() {
  Publisher publisher;
  const Token first = MakeToken(7, 0, 3, 0), second = MakeToken(7, 0, 4, 0), third = MakeToken(7, 0, 5, 0);
  publisher.note_closed(first, 3);
  publisher.note_closed(second, 0);
  publisher.note_closed(first, 3);
  CHECK(!publisher.has_closed(7, 3) && publisher.has_closed(7, 4));
  publisher.note_closed(first, 3);
  CHECK(publisher.has_closed(7, 3) && publisher.has_closed(7, 4) && !publisher.has_closed(8, 3));

  publisher.note_closed(third, 2);
  publisher.forget_closing(7, 5);
  publisher.note_closed(third, 2);
  CHECK(!publisher.has_closed(7, 5));
}

} // namespace
} // namespace effects

int main() {
  using namespace effects;
  RUN(test_program_has_closed_when_all_devices_have);
  RUN(test_wait_loses_nothing);
  RUN(test_wait_with_large_records_loses_nothing);
  RUN(test_drop_newest_counts_what_it_drops);
  RUN(test_drop_oldest_counts_what_it_drops);
  RUN(test_dropping_short_programs_end);
  RUN(test_one_program_on_several_threads);
  RUN(test_ended_threads_records_are_drained);
  RUN(test_short_lived_threads_lose_nothing);
  RUN(test_stop_releases_a_waiting_producer);
  RUN(test_stop_wakes_the_drain);
  RUN(test_open_wakes_the_drain);
  RUN(test_plain_record_wakes_the_drain);
  RUN(test_full_ring_wakes_the_drain);
  RUN(test_later_program_floods_before_the_earlier);
  RUN(test_flood_beside_a_busy_thread);
  RUN(test_parking_grows_beside_a_steady_thread);
  RUN(test_full_batch_loses_no_unordered_record);
  RUN(test_full_parking_loses_nothing_behind_it);
  RUN(test_failed_programs_do_not_hold_up_others);
  RUN(test_large_close_is_never_dropped);
  RUN(test_plain_record_follows_earlier_programs);
  RUN(test_dropped_plain_records_are_not_waited_for);
  RUN(test_parked_plain_record_keeps_the_drain_awake);
  RUN(test_text_is_formatted_in_order);
  RUN(test_consecutive_records_come_together);
  RUN(test_large_record_comes_by_itself);
  RUN(test_batch_ends_with_one_threads_callbacks);
  RUN(test_held_thread_waits_for_its_resumption);
  RUN(test_unordered_records_do_not_wait_behind_callbacks);
  RUN(test_records_without_a_plan_begin_a_run);
  RUN(test_text_stays_ahead_of_a_run);
  RUN(test_carried_callbacks_are_run_one_threads_a_batch);
  RUN(test_plain_records_in_a_run_count_when_it_is_resumed);
  RUN(test_run_of_unordered_plain_records_holds_nothing);
  RUN(test_resume_wakes_the_drain);
  RUN(test_site_is_forgotten_when_its_programs_have_ended);
  RUN(test_site_is_forgotten_when_its_plain_records_have_left);
  RUN(test_no_site_is_forgotten_while_a_stream_is_held);
  RUN(test_release_site_wakes_the_drain);
  RUN(test_site_outlives_a_program_dispatched_during_a_scan);
  RUN(test_program_follows_earlier_plain_records);
  RUN(test_records_before_and_after_a_failure_are_apart);
  RUN(test_awaited_callback_is_the_last_of_its_batch);
  RUN(test_parked_awaited_callbacks_come_one_by_one);
  RUN(test_carried_records_leave_before_their_epoch_ends);
  RUN(test_what_is_formatted);
  RUN(test_late_awaited_record_is_answered);
  RUN(test_failure_answers_replicated_waiters);
  RUN(test_late_replicated_device_is_answered);
  RUN(test_late_awaited_record_is_answered_without_a_lock);
  RUN(test_awaited_record_is_never_dropped);
  RUN(test_awaited_record_outlives_the_end);
  RUN(test_lead_is_taken_and_taken_back);
  RUN(test_offer_is_hurried_on_request);
  RUN(test_hurried_offer_is_taken);
  RUN(test_lasting_offer_is_taken);
  RUN(test_third_that_stands_by_may_end);
  RUN(test_one_leads_at_a_time);
  RUN(test_callbacks_may_wait_for_each_other);
  RUN(test_stop_ends_all_that_stand_by);
  return 0;
}
