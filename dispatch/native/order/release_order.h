// In which order records leave: the part of the drain that knows tokens and nothing of rings or Python.
//
// Every thread of the user's has a stream of epochs, one per dispatched program, opened by the host before the
// program runs. Within an epoch every order domain counts its own effects. A record leaves when its epoch is the
// oldest of its stream of which its domain has not left yet, and its index is the next of its domain; otherwise it is
// parked. Where every device counts for itself there is a Region. An epoch ends when the close markers of all its
// devices are there and every index up to them has left, or when the host says that the program failed.
//
// Each effect of a program that JAX dispatches, a plain one, is an epoch of the plain stream, opened when it is
// published. This stream has an order with all others: plain epochs leave after what was dispatched before them, and
// other epochs after the plain ones before them. All are opened through one inbox, in the order of their dispatches, so
// whoever knows of an epoch knows of all before it. But which programs wait for a plain effect is not known. So a plain
// epoch waits for other streams no longer than `kPlainPatience`.
//
// While functions of the user's run for an order domain of a stream, it is suspended: nothing more of it leaves. Other
// domains go on, in this epoch and in later ones.
//
// One thread at a time, the leader of the drain, calls everything here.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../producer/producer_ring.h"
#include "../wire.h"
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

// The state of one dispatched program: how far each of its order domains has come, and what is parked.
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
  std::optional<std::set<uint32_t>> settled; // what the host has heard: see Settled

  // Devices that have failed while others go on, each with the number of the scan in which the host said so.
  std::map<int32_t, uint64_t> lost;

  void end(bool has_failed, uint64_t scan);
  // The domains of which not all has left that was published before the program closed; if it failed, of what is here.
  void find_left(std::set<uint32_t> &left);
  // A number that changes when ordered records leave.
  uint64_t progress() const { return (uint64_t{info.epoch} << 32) + left; }
};

struct Finished {
  uint32_t thread;
  uint32_t epoch;
};

// An epoch that has come to its end and waits for others, or for functions that run: all has left of it and of those
// before it that is not of these order domains.
struct Settled {
  uint32_t thread;
  uint32_t epoch;
  std::set<uint32_t> left;
};

// A thread's epochs, the oldest first.
struct EpochQueue {
  std::deque<Epoch> epochs;
  std::map<uint64_t, uint32_t> runs; // of the user's functions, those under way: by number, their order domain
  int holds = 0;                     // how often the host holds it
  bool nested = false;
  int carried = 0; // how many records that have left are in the next batches
  std::optional<uint32_t> domain; // of its newest record
  bool several_domains = false;   // it has had others
  // Of the epochs that have ended with records that a run is to replay, the dispatch of the oldest. 0: there are none.
  uint64_t ended_in_run = 0;
  // Epochs that have ended, of which the host has not heard: runs of earlier batches may have records of theirs. Each
  // has the number of the newest run that may; when it and those before are over, the host hears of the end.
  std::deque<std::pair<uint64_t, Finished>> ended;

  bool is_suspended() const { return !runs.empty() || holds != 0; }
  bool is_suspended(uint32_t of) const {
    return holds != 0 || std::any_of(runs.begin(), runs.end(), [&](const auto &run) { return run.second == of; });
  }
  // Whether effects of its dispatches before this one are still to come, or are being replayed.
  bool is_behind(uint64_t dispatch) const {
    if (ended_in_run != 0) return ended_in_run < dispatch;
    return !epochs.empty() && epochs.front().dispatch < dispatch;
  }
};

// How long a plain epoch waits for those of other streams, and one whose answer a device awaits for the functions that
// run for plain epochs before it. These may all wait for it.
inline constexpr std::chrono::seconds kPlainPatience{1};

class ReleaseOrder {
public:
  // The time from which what follows is looked at.
  void set_time(std::chrono::steady_clock::time_point now) { now_ = now; }

  // A program of this thread's is about to be dispatched, as the host's `dispatch`-th. Dispatches come in order.
  void open(const EpochInfo &info, uint64_t dispatch);

  // The program of this epoch failed or never ran; nothing more will be published for it. One of its devices may have
  // closed it all the same, before another failed.
  void fail(uint32_t thread, uint32_t number);

  // One device of this program has failed, and the others go on: they do not wait for its place in the order.
  void lose(uint32_t thread, uint32_t number, int32_t device);

  // Forgets a thread that has ended, once nothing of it is open.
  void forget(uint32_t thread);

  // Takes one record. `release(header, payload, info)` is called for it, and for the records that waited for it.
  // Returns false if the record will never be released.
  bool accept(const RecordHeader &header, Payload &&payload, Release release);
  void accept_drop(const DropRange &range);

  // Called after every scan of all rings: ends the epochs that are complete, oldest dispatch first, and releases what
  // waited behind them. Returns whether a further scan can bring more.
  bool advance(Release release, std::vector<Finished> &finished);

  // Functions of the user's run for records of this thread's order domain, from now on or no more. Runs have numbers.
  uint64_t suspend(uint32_t thread, uint32_t domain);
  void resume(uint32_t thread, uint64_t run);
  // The same for a stream of which nothing is being replayed meanwhile: its records are all here.
  void hold(uint32_t thread) { ++streams_[thread].holds; }
  void let_go(uint32_t thread) { --streams_[thread].holds; }
  bool any_suspended() const { return num_suspended_ != 0; }

  // From now on only ordered records of this thread and domain may leave, or none.
  void restrict_to(uint32_t thread, uint32_t domain) { restricted_to_ = StreamOf(thread, domain); }
  void let_none_leave() { restricted_to_ = kNone; }
  void lift_restriction() {
    restricted_to_ = kNoRestriction;
    plain_callback_in_run_ = false;
  }

  // So many records of this thread more, or fewer, have left and are in the next batches: until then none of its epochs
  // ends.
  void carry(uint32_t thread, int count) { streams_[thread].carried += count; }

  // This thread runs the user's functions. What it dispatches is part of an effect that is being replayed, and waits
  // for nothing but its own.
  void nest(uint32_t thread) { streams_[thread].nested = true; }

  size_t open_epochs() const { return open_epochs_; }
  // The number of the oldest dispatch that has not ended, or is not known yet.
  uint64_t oldest_open() const;
  size_t parked_bytes() const { return parked_bytes_; }
  // Epochs of streams with several domains that have come to their end since the last call, or come further.
  std::vector<Settled> take_settled() { return std::exchange(settled_, {}); }
  // How many records have come since the last call that will not leave: copies, and what has come too late.
  uint64_t take_discarded() { return std::exchange(discarded_, 0); }

  // Whether the epoch of this record is open.
  bool knows(const RecordHeader &header) const;
  // True when `accept` would hand this record straight on, so that taking it costs no memory; and when it must be taken
  // whatever it costs: a failed epoch does not wait for its records, so none may be in a ring when it ends.
  bool releasable(const RecordHeader &header);

  // A number that changes when ordered records of this thread leave.
  uint64_t progress(uint32_t thread) const;

  // Calls `visit` with the threads whose next records are in a region where a device waits for an answer and the others
  // may wait for that device, each with a number that changes when a record of its program comes or leaves.
  void for_each_perhaps_stuck(const std::function<void(uint32_t thread, uint64_t progress)> &visit) const;
  // They do: from now on those that wait for an answer do not wait for other devices there, nor where these sites are.
  void relax(uint32_t thread);

private:
  static constexpr uint64_t kNoRestriction = std::numeric_limits<uint64_t>::max(), kNone = kNoRestriction - 1;

  const Epoch *find(uint32_t thread, uint32_t number) const;
  Epoch *find(uint32_t thread, uint32_t number);

  // Whether the batch that is being made takes ordered records of this thread at all, or of its domain.
  bool takes(uint32_t thread) const {
    return restricted_to_ == kNoRestriction || restricted_to_ >> kDomainBits == thread;
  }
  bool takes(uint32_t thread, uint32_t domain) const {
    return restricted_to_ == kNoRestriction || restricted_to_ == StreamOf(thread, domain);
  }
  bool may_leave(const Epoch &epoch, uint32_t domain) const;
  bool waits_for_others(const Epoch &epoch) const;
  bool is_overdue(const Epoch &epoch) const { return now_ - epoch.opened >= kPlainPatience; }
  void let_awaited_pass(Release release);

  bool accept_in_region(Epoch &epoch, Sequence &sequence, const RecordHeader &header, Payload &&payload,
                        Release release);
  void accept_marker(Epoch &epoch, const RecordHeader &header, const Payload &payload, Release release);

  template <typename Slots, typename Slot>
  bool park(Slots &slots, const Slot &slot, const RecordHeader &header, Payload &&payload);

  bool leave_out_lost(Epoch &epoch);
  Sequence &sequence_of(Epoch &epoch, const Token &token);
  void note_domain(EpochQueue &stream, uint32_t domain);
  void settle(Epoch &epoch, const std::set<uint32_t> &left);
  void tell_ended(EpochQueue &stream, std::vector<Finished> &finished);
  void end_epochs(EpochQueue &stream, Release release, std::vector<Finished> &finished, bool &again);
  void flush(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release);
  void flush_over_gaps(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release);
  void release_first(Sequence &sequence, const EpochInfo &info, Release release);
  void release_slot(Epoch &epoch, Region &region, const Region::Slot &slot, Release release);

  std::unordered_map<uint32_t, EpochQueue> streams_;
  EpochQueue &plain_ = streams_[kPlainThread];
  bool plain_callback_in_run_ = false; // whether the run of this batch has a function of a plain effect
  std::chrono::steady_clock::time_point now_;
  std::vector<std::pair<uint64_t, EpochQueue *>> heads_; // those with epochs, by their oldest dispatch
  uint64_t scan_ = 0;
  uint64_t newest_dispatch_ = 0;
  uint64_t last_run_ = 0;
  int num_suspended_ = 0; // of all streams
  uint64_t restricted_to_ = kNoRestriction;
  size_t open_epochs_ = 0;
  size_t parked_bytes_ = 0;
  uint64_t discarded_ = 0;
  std::vector<Settled> settled_;
  bool any_may_diverge_ = false;             // whether there ever was a region that may be stuck
  std::unordered_set<uint64_t> stuck_sites_; // whose callers were what other devices waited for
};

} // namespace effects
