// Turns released records into a batch: text if native code formats them, bytes if Python needs them.
//
// Records for Python may run functions of the user or of handlers, which may wait for anything. So a batch has such
// records of one thread's programs and one order domain only: its run. The batch ends with its run, and this domain of
// the thread's stream is suspended until the run has been replayed. Unordered records do not wait for running user
// functions: text goes before the run, and other unordered records are carried over to the next batch, unless the run
// is unordered too and has no callback yet.
//
// For the leader of the drain only, except show_python().
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

// The drain's unit of delivery to the host.
struct Item {
  ItemKind kind;
  EpochInfo info;
  uint64_t count;             // the number of its records
  std::string data;           // the text, the records, or a large record's header
  Block block;                // a large record's payload
  uint64_t size = 0;          // of it
  bool has_callbacks = false; // some of the records are callbacks'
  uint32_t reply = 0;         // the number of the reply that a device awaits with the last record; 0: none
  std::vector<TextRun> runs;  // of a text: its records
};

struct Batch {
  static constexpr uint32_t kNoRun = ~uint32_t{0};

  std::vector<Item> items;
  // Ended epochs: all of their records are in this batch or an earlier one.
  std::vector<Finished> finished;
  std::vector<CompleteEpoch> complete;
  std::vector<uint64_t> forgotten; // sites without further records
  uint32_t run = kNoRun;           // the thread of the records for Python
  uint32_t domain = 0;             // their order domain, suspended while they run
  uint64_t run_number = 0;         // from `ReleaseOrder::suspend()`
  bool stopped = false;

  bool has_run() const { return run != kNoRun; }
};

class BatchBuilder {
public:
  BatchBuilder(Stats &stats, Sites &sites, ReleaseOrder &order) : stats_(stats), sites_(sites), order_(order) {}

  // True if all records go to Python, also those that native code could format. Any thread.
  void show_python(bool all) { python_sees_all_.store(all, std::memory_order_relaxed); }

  // begin() starts a batch with the carried-over items; end() suspends the domain of its run.
  void begin(Batch &batch);
  void end(Batch &batch);

  // Adds a released record.
  void release(Batch &batch, const RecordHeader &header, Payload &&payload, const EpochInfo &info);

  bool is_full() const { return bytes_ >= kBatchBytes; }
  // The batch takes no more records: somebody waits for those it has.
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

  std::deque<Item> carried_; // for later batches; all are unordered
  std::vector<Item> texts_;  // of this batch, added after its run: they go before it
  bool run_closed_ = false;
  size_t bytes_ = 0;
  uint64_t last_site_ = 0;
  std::shared_ptr<const Plan> last_plan_;
};

} // namespace effects
