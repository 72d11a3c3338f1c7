// What the tests of publisher and drain share: a Publisher and a Drain, and programs that publish.
//
// The main thread is always the drain's; threads that a test starts publish.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "dispatch/native/drain/drain.h"
#include "dispatch/native/producer/publisher.h"
#include "records.h"

namespace effects {

constexpr uint64_t kSite = 7;
constexpr int32_t kDevice = 3;

// What a payload holds follows from its record's token.
std::string BytesOf(const Token &token, size_t size);

// What a payload begins with, so that the text of a record says which one it is.
struct Preface {
  uint64_t size; // of what follows
  uint32_t stream, epoch, index;
  uint32_t kind;
};

bool Publish(Publisher &publisher, Kind kind, const Token &token, size_t size, uint16_t flags = 0, uint32_t reply = 0);
void Close(Publisher &publisher, uint32_t thread, uint32_t epoch,
           const std::vector<std::pair<uint32_t, uint32_t>> &finals);

// The plan with which native code formats such records: a line each, long enough that many fill a batch.
constexpr char kLine[] = "size, stream, epoch, index and kind of a record:";
constexpr uint64_t kSink = 1;
Plan LinePlan();

// Calls `visit(preface)` for every record that a text stands for, which LinePlan() formatted.
void ForEachLine(const Item &item, const std::function<void(const Preface &)> &visit);
// A batch's items, one string each: "thread.epoch:indices" of records that came together, "large" or "text" before it
// where it is that; before an index "c" if it is a callback's and "u" if it is unordered. The plain
// stream is "plain" in place of a thread. A text's epoch is that of its first record; of one that another plan made
// than LinePlan() there is only the number of its records.
std::vector<std::string> Items(const Batch &batch);
std::vector<std::string> Ends(const Batch &batch);

// A program on its device: publishes from one thread, counts its domains.
class PlayedProgram {
public:
  PlayedProgram(Publisher &publisher, uint32_t thread, uint32_t epoch)
      : publisher_(publisher), thread_(thread), epoch_(epoch) {}
  void record(size_t size, uint32_t domain = 0);
  void callback(size_t size = 8, uint32_t reply = 0);
  void unordered_callback();
  void unordered(size_t size);
  void close();

private:
  Publisher &publisher_;
  uint32_t thread_;
  uint32_t epoch_;
  std::map<uint32_t, uint32_t> next_;
};

// A Publisher, a Drain, and what left them, checked as it leaves.
class World {
public:
  explicit World(WhenFull when_full = WhenFull::kWait, size_t ring_bytes = kSmallest);

  // From now on native code formats the records that are not of callbacks of the programs that are opened with the
  // returned sink.
  uint64_t show_text();

  // Publishes a plain effect, as handlers do.
  bool plain(bool ordered, size_t size, uint16_t flags = 0, uint32_t reply = 0);

  // Takes one batch and checks it: payloads are whole, every thread's records come by epoch, domain and index, nothing
  // follows the end of its epoch, and ends come in order. From the first record for Python on, all is of one thread,
  // and that is the batch's run.
  Batch step(std::chrono::milliseconds patience = kPatience);
  // As the host does when a batch's records for Python have been replayed.
  void resume(const Batch &batch);
  // Takes one batch, and all of it has been replayed.
  Batch play(std::chrono::milliseconds patience = kPatience);
  void until_finished(size_t epochs);
  void check_nothing_lost(uint64_t attempts);

  WakeUp wake_up;
  Publisher publisher{wake_up};
  Sites sites;
  Replies replies;
  Drain drain{wake_up, publisher, sites, replies};
  bool gaps_allowed = false; // programs fail
  size_t finished = 0;
  uint64_t ordered_seen = 0;
  uint64_t unordered_seen = 0;
  uint64_t plain_seen = 0;   // of those: plain ones
  uint64_t awaited_seen = 0; // records that somebody waits for

private:
  struct Seen {
    uint32_t ended = 0; // how many epochs have
    std::map<uint32_t, std::pair<uint32_t, uint32_t>>
        next; // by domain: the epoch of its last record, and the next index
  };
  void see(const Item &item, Kind kind, const Token &token);
  Seen &seen_of(uint32_t thread);

  std::map<uint32_t, Seen> threads_;
};

// Two threads publish, `first` and `second`, and the drain takes a batch. After it has taken what is in the first one's
// ring, and before it takes what is in the second one's, they publish more: `behind` the scan, and then `before` it.
// The end of the second one's ring has been read by then.
Batch DuringScan(World &world, const std::function<void()> &first, const std::function<void()> &second,
                 const std::function<void()> &behind, const std::function<void()> &before);

// Runs `body` in a thread of its own, with a ring of its own, to its end.
template <typename Body>
void InThread(Body &&body) {
  std::thread(body).join();
}

} // namespace effects
