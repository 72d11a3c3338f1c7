// The release order: the part of the drain that knows tokens, but neither rings nor Python.
//
// Every thread of the user's has a stream of epochs, one per dispatched program, opened by the host before the program
// runs. Within an epoch every order domain counts its own effects. A record is released when its epoch is the oldest of
// its stream that is not over for its domain, and its index is the next of its domain; otherwise it is parked. If
// devices count their own effects, a Region orders them. An epoch ends when the close markers of all its devices are
// there and every index up to them has been released, or when the host says that the program failed.
//
// Each effect of a program that JAX dispatches, a plain one, is an epoch of the plain stream, opened when it is
// published. This stream is ordered with all others: plain epochs come after earlier dispatches, and other epochs after
// earlier plain ones. All are opened through one inbox, in the order of their dispatches, so whoever knows an epoch
// knows all before it. It is not known which programs wait for a plain effect, so a plain epoch waits for other streams
// no longer than `kPlainPatience`.
//
// While user functions run for an order domain of a stream, the domain is suspended: no more of its records are
// released. Other domains continue, in this epoch and in later ones.
//
// For the leader of the drain only.
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

// The effects of one order domain of an epoch, released by index, with its regions in between.
struct Sequence {
  uint32_t phase = 0;
  uint64_t next = 0;                  // unwrapped index of the next record outside of regions
  std::map<uint64_t, Parked> parked;  // by unwrapped index
  std::map<uint32_t, Region> regions; // by phase; those that are over are removed

  // Distance from the next index; token indices wrap around at 2^32, distances stay small. Inline, as `is_due` is:
  // called for every record.
  int64_t offset(const Token &token) const { return static_cast<int32_t>(token.index - static_cast<uint32_t>(next)); }
  // True if this record is the next of its domain.
  bool is_due(const RecordHeader &header) {
    if (header.token.phase != phase) return false;
    return InRegion(header.token) ? is_due_in_region(header) : offset(header.token) == 0;
  }
  bool is_due_in_region(const RecordHeader &header);

  // True if the sequence is past this token's phase; or past its index, and in a region past its phase.
  bool has_passed(const Token &token) const { return static_cast<int32_t>(token.phase - phase) < 0; }
  bool is_behind(const Token &token) const { return InRegion(token) ? has_passed(token) : offset(token) < 0; }

  // Advances past the record with this token.
  void pass(const Token &token, int32_t device) {
    if (!InRegion(token)) {
      ++next;
    } else {
      Region &region = regions[token.phase];
      region.move(device, region.slot_of(token, device).first + 1);
    }
  }

  // Gaps of several devices may overlap each other, and released records.
  void park_gap(const DropRange &range);
};

struct EpochQueue;

// The state of one dispatched program: the progress of its order domains, and its parked records.
struct Epoch {
  EpochInfo info;
  EpochQueue *stream;
  uint64_t dispatch;
  std::chrono::steady_clock::time_point opened; // when the leader read its notice
  bool ended = false;
  bool failed = false;
  bool has_callback = false; // true if its plain effect runs a user function
  bool is_asked = false;     // true if a device awaits the answer
  int32_t primary = -1;      // the device whose unordered replicated records count
  uint64_t ended_scan = 0;
  uint64_t left = 0;         // the number of released ordered records
  uint64_t heard = 0;        // the number of records and markers that have come
  uint64_t closed = 0;       // the number of devices that have closed
  std::vector<Token> finals; // of each domain, after its last effect
  std::map<uint32_t, Sequence> domains;
  std::optional<std::set<uint32_t>> told_left; // as last told to the host: see CompleteEpoch

  // Devices that have failed while others continue, each with the number of the scan at the host's notice.
  std::map<int32_t, uint64_t> lost;

  void end(bool has_failed, uint64_t scan);
  // The domains with unreleased records from before the close; of a failed program, with parked records.
  void find_left(std::set<uint32_t> &left);
  // A number that changes when ordered records are released.
  uint64_t progress() const { return (uint64_t{info.epoch} << 32) + left; }
};

struct Finished {
  uint32_t thread;
  uint32_t epoch;
};

// An epoch that is complete but waits for other epochs or running functions. Its records, and those of earlier epochs,
// have all been released, except in these order domains.
struct CompleteEpoch {
  uint32_t thread;
  uint32_t epoch;
  std::set<uint32_t> left;
};

// A thread's epochs, the oldest first.
struct EpochQueue {
  std::deque<Epoch> epochs;
  std::map<uint64_t, uint32_t> runs; // the runs of user functions under way: by number, their order domain
  int holds = 0;                     // the number of the host's holds
  bool nested = false;
  int carried = 0;                // the number of released records that are carried over
  std::optional<uint32_t> domain; // the newest record's
  bool several_domains = false;   // it has had several
  // The oldest dispatch of the ended epochs whose records a run has yet to replay; 0: none.
  uint64_t ended_in_run = 0;
  // Ended epochs that the host does not know of yet, since a run that began before an epoch ended may still replay its
  // records. Each entry begins with the number of the newest such run. The host hears of the epoch as soon as no run
  // has this number or a smaller one.
  std::deque<std::pair<uint64_t, Finished>> ended;

  bool is_suspended() const { return !runs.empty() || holds != 0; }
  bool is_suspended(uint32_t of) const {
    return holds != 0 || std::any_of(runs.begin(), runs.end(), [&](const auto &run) { return run.second == of; });
  }
  // True if effects of its dispatches before this one are still to come, or are being replayed.
  bool is_behind(uint64_t dispatch) const {
    if (ended_in_run != 0) return ended_in_run < dispatch;
    return !epochs.empty() && epochs.front().dispatch < dispatch;
  }
};

// How long a plain epoch waits for other streams' epochs, and an awaited one for the functions of plain epochs before
// it. Any of these may itself wait for the plain epoch.
inline constexpr std::chrono::seconds kPlainPatience{1};

class ReleaseOrder {
public:
  // Sets the time for the calls that follow.
  void set_time(std::chrono::steady_clock::time_point now) { now_ = now; }

  // A program of this thread is about to be dispatched, as the host's `dispatch`-th. Dispatches come in order.
  void open(const EpochInfo &info, uint64_t dispatch);

  // The program of this epoch failed or never ran; nothing more will be published for it. One of its devices may have
  // closed it all the same, before another failed.
  void fail(uint32_t thread, uint32_t number);

  // One device of this program has failed, and the others continue without waiting for its records.
  void lose(uint32_t thread, uint32_t number, int32_t device);

  // Forgets a thread that has ended, once nothing of it is open.
  void forget(uint32_t thread);

  // Takes one record. Calls `release(header, payload, info)` for it and for the records that waited for it, when they
  // are due. Of a record that awaits an answer, returns false if it will never be released.
  bool accept(const RecordHeader &header, Payload &&payload, Release release);
  void accept_drop(const DropRange &range);

  // Called after every scan of all rings: ends the complete epochs, oldest dispatch first, and releases the records
  // that waited for them. Returns true if another scan can bring more.
  bool advance(Release release, std::vector<Finished> &finished);

  // User functions begin or end to run for records of this thread's order domain. Returns the number of the run.
  uint64_t suspend(uint32_t thread, uint32_t domain);
  void resume(uint32_t thread, uint64_t run);
  // The same for a whole stream, of which no record is being replayed.
  void hold(uint32_t thread) { ++streams_[thread].holds; }
  void let_go(uint32_t thread) { --streams_[thread].holds; }
  bool any_suspended() const { return num_suspended_ != 0; }

  // From now on only ordered records of this thread and domain may be released, or none.
  void restrict_to(uint32_t thread, uint32_t domain) { restricted_to_ = StreamOf(thread, domain); }
  void let_none_leave() { restricted_to_ = kNone; }
  void lift_restriction() {
    restricted_to_ = kNoRestriction;
    plain_callback_in_run_ = false;
  }

  // Changes the number of carried-over records of this thread: while there are any, none of its epochs ends.
  void carry(uint32_t thread, int count) { streams_[thread].carried += count; }

  // This thread runs user functions. Its programs are part of an effect that is being replayed, and wait for its own
  // stream only.
  void nest(uint32_t thread) { streams_[thread].nested = true; }

  size_t open_epochs() const { return open_epochs_; }
  // The number of the oldest dispatch that has not ended, or of the next one.
  uint64_t oldest_open() const;
  size_t parked_bytes() const { return parked_bytes_; }
  // Epochs of streams with several domains that have become complete, or progressed, since the last call.
  std::vector<CompleteEpoch> take_complete() { return std::exchange(complete_, {}); }
  // The number of records since the last call that will never be released: copies, and late ones.
  uint64_t take_discarded() { return std::exchange(discarded_, 0); }

  // True if the epoch of this record is open.
  bool knows(const RecordHeader &header) const;
  // True if `accept` would release this record at once, so that taking it costs no memory; or if it must be taken at
  // any cost: a failed epoch does not wait for its records, so none may be in a ring when it ends.
  bool releasable(const RecordHeader &header);

  // A number that changes when ordered records of this thread are released.
  uint64_t progress(uint32_t thread) const;

  // Calls `visit` with the threads whose next records are in a region where a device waits for an answer and the others
  // may wait for that device, each with a number that changes when a record of its program comes or leaves.
  void for_each_perhaps_stuck(const std::function<void(uint32_t thread, uint64_t progress)> &visit) const;
  // Takes them to be stuck: from now on awaited records do not wait for other devices there, nor at these sites in
  // other regions.
  void relax(uint32_t thread);

private:
  static constexpr uint64_t kNoRestriction = std::numeric_limits<uint64_t>::max(), kNone = kNoRestriction - 1;

  const Epoch *find(uint32_t thread, uint32_t number) const;
  Epoch *find(uint32_t thread, uint32_t number);

  // True if the batch that is being made takes ordered records of this thread at all, or of this domain.
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
  void note_complete(Epoch &epoch, const std::set<uint32_t> &left);
  void tell_ended(EpochQueue &stream, std::vector<Finished> &finished);
  void end_epochs(EpochQueue &stream, Release release, std::vector<Finished> &finished, bool &again);
  void flush(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release);
  void flush_over_gaps(Epoch &epoch, uint32_t domain, Sequence &sequence, Release release);
  void release_first(Sequence &sequence, const EpochInfo &info, Release release);
  void release_slot(Epoch &epoch, Region &region, const Region::Slot &slot, Release release);

  std::unordered_map<uint32_t, EpochQueue> streams_;
  EpochQueue &plain_ = streams_[kPlainThread];
  bool plain_callback_in_run_ = false; // true if the run of this batch has a plain effect's function
  std::chrono::steady_clock::time_point now_;
  std::vector<std::pair<uint64_t, EpochQueue *>> heads_; // the non-empty queues, by their oldest dispatch
  uint64_t scan_ = 0;
  uint64_t newest_dispatch_ = 0;
  uint64_t last_run_ = 0;
  int num_suspended_ = 0; // over all streams
  uint64_t restricted_to_ = kNoRestriction;
  size_t open_epochs_ = 0;
  size_t parked_bytes_ = 0;
  uint64_t discarded_ = 0;
  std::vector<CompleteEpoch> complete_;
  bool any_may_diverge_ = false;             // true if there ever was a region that may deadlock
  std::unordered_set<uint64_t> stuck_sites_; // sites of records that were awaited in stuck regions
};

} // namespace effects
