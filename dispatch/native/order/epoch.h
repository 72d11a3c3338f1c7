// The state of one dispatched program, as the release order sees it: how far each of its order domains has come, and
// what is parked.
//
// The leader of the drain alone calls everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "../producer/producer_ring.h"
#include "parked.h"
#include "region.h"

namespace effects {

// The effects of one order domain of an epoch. They leave in the order of their indices, and between those of their
// regions.
struct Sequence {
  uint32_t phase = 0;
  uint64_t next = 0;                  // unwrapped index of the record that leaves next outside of regions
  std::map<uint64_t, Parked> parked;  // by unwrapped index
  std::map<uint32_t, Region> regions; // by phase: those that are not over

  // Distance from the next index; token indices wrap around at 2^32, distances stay small. Inline, as `is_due` is:
  // every record comes by.
  int64_t offset(const Token &token) const { return static_cast<int32_t>(token.index - static_cast<uint32_t>(next)); }
  // Whether this record is the one that leaves next, as far as its domain is concerned.
  bool is_due(const RecordHeader &header) {
    if (header.token.phase != phase) return false;
    return InRegion(header.token) ? is_due_in_region(header) : offset(header.token) == 0;
  }
  bool is_due_in_region(const RecordHeader &header);

  // Whether all up to this token's phase has left; or its index too.
  bool has_passed(const Token &token) const { return static_cast<int32_t>(token.phase - phase) < 0; }
  bool is_behind(const Token &token) const { return InRegion(token) ? has_passed(token) : offset(token) < 0; }

  // The record with this token has left.
  void pass(const Token &token, int32_t device) {
    if (!InRegion(token)) {
      ++next;
    } else {
      Region &region = regions[token.phase];
      region.move(device, region.slot_of(token, device).first + 1);
    }
  }

  // Gaps of several devices may overlap each other, and what has left.
  void park_gap(const DropRange &range);
};

struct EpochQueue;

struct Epoch {
  EpochInfo info;
  EpochQueue *stream;
  uint64_t dispatch;
  std::chrono::steady_clock::time_point opened; // when the leader read of it
  bool ended = false;
  bool failed = false;
  bool has_callback = false; // of a plain effect: whether it runs a function of the user's
  bool is_asked = false;     // and whether a device awaits the answer
  int32_t primary = -1;      // the device whose replicated records without an order count
  uint64_t ended_scan = 0;
  uint64_t left = 0;         // how many ordered records have left
  uint64_t heard = 0;        // how many records and markers have come
  uint64_t closed = 0;       // how many devices have
  std::vector<Token> finals; // of each domain, after its last effect
  std::map<uint32_t, Sequence> domains;

  // Devices that have failed while others go on, each with the number of the scan in which the host said so.
  std::map<int32_t, uint64_t> lost;

  void end(bool has_failed, uint64_t scan);
  // Whether all has left that was published before the program closed. No, if it failed.
  bool is_complete();
  // A number that changes when ordered records leave.
  uint64_t progress() const { return (uint64_t{info.epoch} << 32) + left; }
};

// A thread's epochs, the oldest first.
struct EpochQueue {
  std::deque<Epoch> epochs;
  int runs = 0;  // how many runs of the user's functions are under way for it
  int holds = 0; // how often the host holds it
  bool nested = false;
  // Of the epochs that have ended with records that a run is to replay, the dispatch of the oldest. 0: there are none.
  uint64_t ended_in_run = 0;

  bool is_suspended() const { return runs + holds != 0; }
  // Whether effects of its dispatches before this one are still to come, or are being replayed.
  bool is_behind(uint64_t dispatch) const {
    if (ended_in_run != 0) return ended_in_run < dispatch;
    return !epochs.empty() && epochs.front().dispatch < dispatch;
  }
};

} // namespace effects
