// Turns records that leave into a batch: text where native code formats them, bytes where Python must see them.
//
// Records for Python may run functions of the user's, or of handlers, which may wait for anything. So a batch has those
// of one thread's programs and one order domain: its run. It ends with them, and this domain of the thread's stream is
// suspended until they have been replayed. What is unordered waits for no function of the user's that runs: text stands
// ahead of the run, and the rest is carried over to the next batch, unless the run is unordered too and has no callback
// so far.
//
// The leader of the drain alone calls everything here, except for show_python().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../order/parked.h"
#include "../order/release_order.h"
#include "../producer/publisher.h"
#include "../wire.h"
#include "sites.h"

namespace effects {

// What the drain hands to the host at a time.
struct Item {
  ItemKind kind;
  EpochInfo info;
  uint64_t count;             // how many records it stands for
  std::string data;           // the text, the records, or the large one's header
  Block block;                // the large one's payload
  uint64_t size = 0;          // of it
  bool has_callbacks = false; // some of them are of callbacks
  uint32_t reply = 0;         // the number of the reply that a device waits for with the last of these; 0: none
  std::vector<TextRun> runs;  // of a text: which records it is of
};

struct Batch {
  static constexpr uint32_t kNoRun = ~uint32_t{0};

  std::vector<Item> items;
  // Epochs that have ended: everything of theirs is in this batch or an earlier one.
  std::vector<Finished> finished;
  std::vector<Settled> settled;
  std::vector<uint64_t> forgotten; // sites of which no record will come
  uint32_t run = kNoRun;           // the thread of whose programs this batch has records for Python
  uint32_t domain = 0;             // and their order domain, which is suspended while they run
  uint64_t run_number = 0;         // as `ReleaseOrder::suspend()` gives it
  bool stopped = false;

  bool has_run() const { return run != kNoRun; }
};

class BatchBuilder {
public:
  BatchBuilder(Stats &stats, Sites &sites, ReleaseOrder &order) : stats_(stats), sites_(sites), order_(order) {}

  // Whether all records go to Python, also those that native code could format. Any thread.
  void show_python(bool all) { python_sees_all_.store(all, std::memory_order_relaxed); }

  // A batch begins, with what was carried over; ends, with the domain of its run suspended.
  void begin(Batch &batch);
  void end(Batch &batch);

  // A record leaves.
  void release(Batch &batch, const RecordHeader &header, Payload &&payload, const EpochInfo &info);

  bool is_full() const { return bytes_ >= kBatchBytes; }
  // The batch takes no more: somebody waits for what is here.
  bool is_closed() const { return run_closed_; }
  bool has_carried() const { return !carried_.empty(); }

private:
  static constexpr size_t kBatchBytes = size_t{1} << 18;

  void begin_run(Batch &batch, uint32_t thread, uint32_t domain);
  void close_run();
  bool must_carry(const Batch &batch, uint32_t thread, uint32_t domain) const;
  void carry_over(const RecordHeader &header, Payload &&payload, const EpochInfo &info);
  void append_text(std::vector<Item> &items, const Plan &plan, uint64_t site, const Payload &payload,
                   const EpochInfo &info);
  template <typename Items>
  void append_record(Items &items, const RecordHeader &header, Payload &&payload, const EpochInfo &info);
  const Plan *plan_of(uint64_t site);

  Stats &stats_;
  Sites &sites_;
  ReleaseOrder &order_;
  std::atomic<bool> python_sees_all_{false};

  std::deque<Item> carried_; // for the next batches, all unordered
  std::vector<Item> texts_;  // of this batch, which came when it had a run: they go ahead of that
  bool run_closed_ = false;
  size_t bytes_ = 0;
  uint64_t last_site_ = 0;
  std::shared_ptr<const Plan> last_plan_;
};

} // namespace effects
