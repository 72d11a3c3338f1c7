// What the drain hands to the host at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../order/parked.h"
#include "../order/release_order.h"
#include "../wire.h"

namespace effects {

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
  std::vector<uint64_t> forgotten; // sites of which no record will come
  uint32_t run = kNoRun; // the thread of whose programs this batch has records for Python: suspended while they run
  bool stopped = false;

  bool has_run() const { return run != kNoRun; }
};

} // namespace effects
