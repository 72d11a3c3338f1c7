// In which order records leave: the part of the drain that knows tokens and nothing of rings or Python.
//
// Every thread of the user's has a stream of epochs, one per dispatched program, opened by the host before the
// program runs. Within an epoch every order domain counts its own effects. A record leaves when its epoch is the
// oldest of its stream and its index is the next of its domain; otherwise it is parked. Where every device counts for
// itself there is a Region. An epoch ends when the close markers of all its devices are there and every index up to
// them has left, or when the host says that the program failed.
//
// While functions of the user's run for a stream, the stream is held: nothing more of it leaves
// that has an order.
//
// One thread at a time, that which leads the drain, calls everything here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "record.h"
#include "region.h"

namespace effects {

// Indices that were dropped because a ring was full: the order must not wait for them.
struct DropRange {
  Token first;
  uint64_t count;
  int32_t device = 0;
};

struct Finished {
  uint32_t thread;
  uint32_t epoch;
};

// What `Release` is called with: a record, and what the host said about its epoch when it opened it.
struct EpochInfo {
  uint32_t thread;
  uint32_t epoch;
  uint64_t sink;
  bool failed = false;
};

// A record's bytes: where they are, and the memory that they have for themselves, if any. Who keeps them takes it.
struct Payload {
  const std::byte *data;
  size_t size;
  Block block;

  Block keep() && {
    if (block) return std::move(block);
    Block copy = AllocateBlock(size);
    if (size != 0) std::memcpy(copy.get(), data, size);
    return copy;
  }
};

class ReleaseOrder {
public:
  // A program of this thread's is about to be dispatched, as the host's `dispatch`-th. Epochs of a thread come in
  // order.
  void open(const EpochInfo &info, uint64_t dispatch) {
    Stream &stream = streams_[info.thread];
    Epoch &epoch = stream.epochs.emplace_back();
    epoch.stream = &stream;
    epoch.info = info;
    epoch.dispatch = dispatch;
    epoch.opened_scan = scan_;
    newest_dispatch_ = dispatch;
    ++open_epochs_;
  }

  // The program of this epoch failed or never ran; nothing more will be published for it. One of its devices may have
  // closed it all the same, before another failed.
  void fail(uint32_t thread, uint32_t number) {
    if (Epoch *epoch = find(thread, number); epoch != nullptr && !epoch->failed) end(*epoch, /*failed=*/true);
  }

  // Functions of the user's run for records of this thread, or have run.
  void hold(uint32_t thread) {
    ++held(thread);
    ++held_;
  }
  void resume(uint32_t thread) {
    --held(thread);
    --held_;
  }
  bool any_held() const { return held_ != 0; }

  // From now on only this thread's ordered records leave, or with kNoThread none; kNobody ends it.
  static constexpr uint32_t kNobody = std::numeric_limits<uint32_t>::max();
  static constexpr uint32_t kNoThread = kNobody - 1;
  void only(uint32_t thread) { only_ = thread; }

  // This thread runs the user's functions. What it dispatches is part of an effect that is being replayed, and waits
  // for nothing but its own.
  void nest(uint32_t thread) { streams_[thread].nested = true; }

  // Whether somebody inside a held stream waits for plain records: they cannot wait for that stream then.
  void impatient(bool is) { impatient_ = is; }

  size_t open_epochs() const { return open_epochs_; }
  // The number of the oldest dispatch that has not ended, or is not known yet.
  uint64_t oldest_open() const {
    uint64_t oldest = newest_dispatch_ + 1;
    for (auto &[thread, stream] : streams_)
      if (!stream.epochs.empty()) oldest = std::min(oldest, stream.epochs.front().dispatch);
    return oldest;
  }
  size_t parked_bytes() const { return parked_bytes_; }

  // Whether the epoch of this record is open; of a plain record, whether all it must wait for is known.
  bool knows(const RecordHeader &header) {
    if (ThreadOf(header.token) == kPlainThread)
      return static_cast<int32_t>(header.token.epoch - static_cast<uint32_t>(newest_dispatch_)) <= 0;
    return find(ThreadOf(header.token), header.token.epoch) != nullptr;
  }

  // A number that changes when ordered records of this thread leave.
  uint64_t progress(uint32_t thread) const {
    if (thread == kPlainThread) return plain_.next;
    auto it = streams_.find(thread);
    if (it == streams_.end() || it->second.epochs.empty()) return 0;
    const Epoch &oldest = it->second.epochs.front();
    return (uint64_t{oldest.info.epoch} << 32) + oldest.left;
  }

  // The threads whose turn it is for a region in which somebody waits who may be what the others wait for, each with a
  // number that changes when anything of its program's comes or leaves.
  template <typename Visit>
  void for_each_perhaps_stuck(Visit &&visit) {
    if (!any_apart_) return;
    for (auto &[thread, stream] : streams_) {
      if (stream.epochs.empty() || !may_release(stream.epochs.front())) continue;
      Epoch &oldest = stream.epochs.front();
      for (auto &[domain, sequence] : oldest.domains)
        if (auto region = sequence.regions.find(sequence.phase);
            region != sequence.regions.end() && region->second.may_be_stuck())
          visit(thread, (uint64_t{oldest.info.epoch} << 32) + oldest.left + oldest.heard);
    }
  }
  // They are: from now on those that wait do not wait for other devices there, nor where these sites are.
  void relax(uint32_t thread) {
    for (auto &[domain, sequence] : streams_[thread].epochs.front().domains) {
      auto region = sequence.regions.find(sequence.phase);
      if (region == sequence.regions.end() || !region->second.may_be_stuck()) continue;
      region->second.relax();
      for (auto &[place, parked] : region->second.parked)
        if (parked.header.reply != 0) stuck_sites_.insert(parked.header.site);
    }
  }

  // True when `accept` would hand this record straight on, so that taking it costs no memory; and when it must be taken
  // whatever it costs: a failed epoch does not wait for its records, so none may be in a ring when it ends.
  bool releasable(const RecordHeader &header) {
    if (header.kind != Kind::kOrdered) return true;
    if (ThreadOf(header.token) == kPlainThread)
      return offset(plain_, header.token) <= 0 && plain_may_leave() && plain_due(header);
    Epoch *epoch = find(ThreadOf(header.token), header.token.epoch);
    if (epoch == nullptr || epoch->failed) return true;
    Sequence &sequence = epoch->domains[domain_of(header.token)];
    return may_release(*epoch) && (is_due(sequence, header) || is_behind(sequence, header.token));
  }

  // From now on there are plain records.
  void expect_plain() { plain_expected_ = true; }

  // Takes one record. `release(header, payload, info)` is called for it, and for what it was in the way of. Returns
  // false if nobody will ever want it.
  template <typename Release>
  bool accept(const RecordHeader &header, Payload &&payload, Release &&release) {
    const uint32_t thread = ThreadOf(header.token);
    if (thread == kPlainThread) {
      if (header.kind == Kind::kUnordered) {
        release(header, std::move(payload), kPlainInfo);
        return true;
      }
      if (header.reply != 0) ++plain_awaited_;
      park(plain_.parked, plain_.next + offset(plain_, header.token), header, std::move(payload));
      flush_plain(release);
      return true;
    }
    Epoch *epoch = find(thread, header.token.epoch);
    if (epoch == nullptr) return false; // another device's copy of a record that has left, or its program has failed
    if ((header.flags & kReplicated) != 0 && header.reply == 0 && !IsMarker(header.kind)) {
      // The first device that is heard of speaks for all: the others say the same. What is waited for comes but once.
      if (epoch->speaker < 0) epoch->speaker = header.device;
      if (epoch->speaker != header.device) return true;
    }
    if (header.kind == Kind::kUnordered) {
      release(header, std::move(payload), epoch->info);
      return true;
    }
    ++epoch->heard;
    if (header.kind == Kind::kSkip) {
      accept_drop({header.token, 1, header.device});
      if (may_release(*epoch)) flush(*epoch, epoch->domains[domain_of(header.token)], release);
      return true;
    }
    if (IsMarker(header.kind)) {
      mark(*epoch, header, payload, release);
      return true;
    }
    Sequence &sequence = epoch->domains[domain_of(header.token)];
    if (is_due(sequence, header) && may_release(*epoch)) {
      release(header, std::move(payload), epoch->info);
      pass(sequence, header.token, header.device);
      ++epoch->left;
      flush(*epoch, sequence, release);
      return true;
    }
    if (is_behind(sequence, header.token)) return header.reply == 0; // a device's copy; who waits has come too late
    if (InRegion(header.token)) {
      Region &region = sequence.regions[header.token.phase];
      const Region::Place place = region.place_of(header.token, header.device);
      const bool wanted = park(region.parked, place, header, std::move(payload)) || header.reply == 0;
      if (header.reply != 0 && wanted) {
        region.await(place);
        if (stuck_sites_.count(header.site) != 0) region.relax();
      }
      if (may_release(*epoch)) flush(*epoch, sequence, release);
      return wanted;
    }
    return park(sequence.parked, sequence.next + static_cast<uint64_t>(offset(sequence, header.token)), header,
                std::move(payload)) ||
           header.reply == 0;
  }

  void accept_drop(const DropRange &range) {
    if (ThreadOf(range.first) == kPlainThread) {
      park_gap(plain_, range);
      return;
    }
    Epoch *epoch = find(ThreadOf(range.first), range.first.epoch);
    if (epoch == nullptr) return;
    Sequence &sequence = epoch->domains[domain_of(range.first)];
    if (!InRegion(range.first)) {
      park_gap(sequence, range);
    } else if (!has_passed(sequence, range.first)) {
      Region &region = sequence.regions[range.first.phase];
      region.parked.try_emplace(region.place_of(range.first, range.device), Parked::gap(range.first, range.count));
    }
  }

  // Called after every scan of all rings: ends the epochs that are complete, oldest dispatch first, and releases what
  // waited behind them. Returns whether a further scan can bring more.
  template <typename Release>
  bool advance(Release &&release, std::vector<Finished> &finished) {
    ++scan_;
    bool again = flush_plain(release);
    heads_.clear();
    for (auto &[thread, stream] : streams_)
      if (!stream.epochs.empty()) heads_.emplace_back(stream.epochs.front().dispatch, &stream);
    std::sort(heads_.begin(), heads_.end());
    for (auto &[dispatch, stream] : heads_) {
      while (!stream->epochs.empty()) {
        Epoch &epoch = stream->epochs.front();
        if (!may_release(epoch)) {
          again = again || scan_ <= epoch.opened_scan + 1;
          break;
        }
        for (auto &[domain, sequence] : epoch.domains) flush(epoch, sequence, release);
        if (!epoch.ended || !is_let(epoch.info.thread)) break;
        // What the program published before it ended is in some ring at the latest when its close marker is seen, but
        // perhaps in a ring that this scan had already passed: one full scan more, and everything is here.
        if (scan_ <= epoch.ended_scan + 1) {
          again = true;
          break;
        }
        if (!complete(epoch)) {
          if (!epoch.failed) break;
          for (auto &[domain, sequence] : epoch.domains) flush_over_gaps(epoch, sequence, release);
          if (!is_let(epoch.info.thread)) break;
        }
        finished.push_back({epoch.info.thread, epoch.info.epoch});
        --open_epochs_;
        stream->epochs.pop_front();
        again = again || !stream->epochs.empty();
      }
    }
    return flush_plain(release) || again;
  }

  // Forgets a thread that has ended, once nothing of it is open.
  void forget(uint32_t thread) {
    auto it = streams_.find(thread);
    if (it != streams_.end() && it->second.epochs.empty() && it->second.held == 0) streams_.erase(it);
  }

private:
  struct Sequence {
    uint32_t phase = 0;
    uint64_t next = 0;                  // unwrapped index of the record that leaves next outside of regions
    std::map<uint64_t, Parked> parked;  // by unwrapped index
    std::map<uint32_t, Region> regions; // by phase: those that are not over
  };
  struct Stream;
  struct Epoch {
    EpochInfo info;
    Stream *stream;
    uint64_t dispatch;
    uint64_t opened_scan = 0;
    bool ended = false;
    bool failed = false;
    int32_t speaker = -1; // whose replicated records count
    uint64_t ended_scan = 0;
    uint64_t left = 0;         // how many ordered records have left
    uint64_t heard = 0;        // how many records and markers have come
    uint64_t closed = 0;       // how many devices have
    std::vector<Token> finals; // of each domain, after its last effect
    std::map<uint32_t, Sequence> domains;
  };
  struct Stream {
    std::deque<Epoch> epochs;
    int held = 0; // how many runs of the user's functions are under way for it
    bool nested = false;
  };

  static constexpr EpochInfo kPlainInfo{kPlainThread, 0, 1};
  static uint32_t domain_of(const Token &token) { return token.stream & ((1u << kDomainBits) - 1); }

  // Distance from the next index; token indices wrap around at 2^32, distances stay small.
  static int64_t offset(const Sequence &sequence, const Token &token) {
    return static_cast<int32_t>(token.index - static_cast<uint32_t>(sequence.next));
  }

  Epoch *find(uint32_t thread, uint32_t number) {
    auto it = streams_.find(thread);
    if (it == streams_.end() || it->second.epochs.empty()) return nullptr;
    auto &epochs = it->second.epochs;
    const uint32_t position = number - epochs.front().info.epoch;
    return position < epochs.size() ? &epochs[position] : nullptr;
  }

  bool is_let(uint32_t thread) const { return only_ == kNobody || only_ == thread; }
  int &held(uint32_t thread) {
    return thread == kPlainThread ? plain_held_ : thread == kNoThread ? unordered_held_ : streams_[thread].held;
  }

  // Whether it is this epoch's turn: it is its thread's oldest, its thread is not held, and no plain record from before
  // its dispatch is left. One may be in a ring that the scan during which the epoch was opened had passed; after a
  // whole scan more it is parked.
  bool may_release(const Epoch &epoch) const {
    const Stream &stream = *epoch.stream;
    if (&stream.epochs.front() != &epoch || stream.held != 0) return false;
    if (!is_let(epoch.info.thread)) return false;
    if (!plain_expected_ || stream.nested) return true;
    if (scan_ <= epoch.opened_scan + 1) return false;
    if (plain_held_ != 0 && static_cast<int32_t>(plain_stamp_ - static_cast<uint32_t>(epoch.dispatch)) < 0)
      return false;
    if (plain_.parked.empty()) return true;
    const Parked &oldest = plain_.parked.begin()->second;
    return oldest.gap_count != 0 ||
           static_cast<int32_t>(oldest.header.token.epoch - static_cast<uint32_t>(epoch.dispatch)) >= 0;
  }

  void end(Epoch &epoch, bool failed) {
    epoch.ended = true;
    epoch.failed = epoch.info.failed = failed;
    epoch.ended_scan = scan_;
  }

  static bool complete(Epoch &epoch) {
    if (epoch.failed) return false;
    for (const Token &last : epoch.finals) {
      const Sequence &sequence = epoch.domains[domain_of(last)];
      if (sequence.phase != last.phase || static_cast<uint32_t>(sequence.next) != last.index) return false;
    }
    return true;
  }

  // A marker of one device's.
  template <typename Release>
  void mark(Epoch &epoch, const RecordHeader &header, const Payload &payload, Release &&release) {
    if (header.kind == Kind::kClose && epoch.ended) return;
    const bool first = header.kind != Kind::kClose || epoch.closed++ == 0;
    for (size_t at = 0; first && at + sizeof(Token) <= header.payload_size; at += sizeof(Token)) {
      Token token;
      std::memcpy(&token, payload.data + at, sizeof token);
      if (header.kind == Kind::kClose) {
        epoch.finals.push_back(token);
        continue;
      }
      Sequence &sequence = epoch.domains[domain_of(token)];
      if (has_passed(sequence, token)) continue; // its program failed, and it is late
      Region &region = sequence.regions[token.phase];
      if (header.kind == Kind::kEnter) {
        const bool apart = (header.flags & kApart) != 0;
        region.enter(header.device, header.site, token.index, apart);
        any_apart_ = any_apart_ || apart;
      }
      if (header.kind == Kind::kLeave) region.leave(header.device, token.index);
      if (may_release(epoch)) flush(epoch, sequence, release);
    }
    if (header.kind == Kind::kClose && epoch.closed >= header.site) end(epoch, /*failed=*/false);
  }

  // Whether all up to this token's phase has left; or its index too.
  static bool has_passed(const Sequence &sequence, const Token &token) {
    return static_cast<int32_t>(token.phase - sequence.phase) < 0;
  }
  static bool is_behind(const Sequence &sequence, const Token &token) {
    return InRegion(token) ? has_passed(sequence, token) : offset(sequence, token) < 0;
  }

  // Whether this record is the one that leaves next, as far as its domain is concerned.
  static bool is_due(Sequence &sequence, const RecordHeader &header) {
    if (header.token.phase != sequence.phase) return false;
    if (!InRegion(header.token)) return offset(sequence, header.token) == 0;
    Region &region = sequence.regions[sequence.phase];
    const Region::Place *next = region.next();
    return next != nullptr && *next == region.place_of(header.token, header.device);
  }

  // The record with this token has left, and as many as come with it.
  static void pass(Sequence &sequence, const Token &token, int32_t device, uint64_t count = 1) {
    if (!InRegion(token)) {
      sequence.next += count;
    } else {
      Region &region = sequence.regions[token.phase];
      region.move(device, region.place_of(token, device).first + count);
    }
  }

  template <typename Places, typename Place>
  bool park(Places &places, const Place &place, const RecordHeader &header, Payload &&payload) {
    auto [it, inserted] = places.try_emplace(place);
    if (!inserted) return false; // another device's copy
    it->second.header = header;
    it->second.payload = std::move(payload).keep();
    parked_bytes_ += sizeof(Parked) + header.payload_size;
    return true;
  }

  // Gaps of several devices may overlap each other, and what has left.
  void park_gap(Sequence &sequence, const DropRange &range) {
    const int64_t ahead = offset(sequence, range.first);
    const uint64_t behind = ahead < 0 ? static_cast<uint64_t>(-ahead) : 0;
    if (behind >= range.count) return;
    const uint64_t count = range.count - behind;
    auto [it, inserted] = sequence.parked.try_emplace(
        sequence.next + static_cast<uint64_t>(std::max<int64_t>(ahead, 0)), Parked::gap(range.first, count));
    // A record that is there stays: whoever dropped its copy says what became of those behind it.
    if (!inserted && it->second.gap_count != 0) it->second.gap_count = std::max(it->second.gap_count, count);
  }

  template <typename Release>
  void release_first(Sequence &sequence, const EpochInfo &info, Release &&release) {
    auto it = sequence.parked.begin();
    Parked &parked = it->second;
    if (parked.gap_count != 0) {
      sequence.next = std::max(sequence.next, it->first + parked.gap_count);
    } else {
      if (it->first == sequence.next) { // else a gap has passed it
        release_parked(parked, info, release);
        ++sequence.next;
      }
      parked_bytes_ -= sizeof(Parked) + parked.header.payload_size;
    }
    sequence.parked.erase(it);
  }

  template <typename Release>
  static void release_parked(Parked &parked, const EpochInfo &info, Release &&release) {
    const std::byte *data = parked.payload.get();
    const size_t size = parked.header.payload_size;
    // A large one's memory goes on to whoever wants it.
    release(parked.header, Payload{data, size, (parked.header.flags & kLarge) ? std::move(parked.payload) : Block()},
            info);
  }

  // A record that is parked in a region, or a gap, leaves.
  template <typename Release>
  void release_parked(Epoch &epoch, Region &region, const Region::Place &place, Release &&release) {
    auto it = region.parked.find(place);
    const auto [index, device] = it->first;
    Parked &parked = it->second;
    if (parked.gap_count == 0) {
      release_parked(parked, epoch.info, release);
      ++epoch.left;
      parked_bytes_ -= sizeof(Parked) + parked.header.payload_size;
    }
    region.move(device, index + std::max<uint64_t>(parked.gap_count, 1));
    region.forget({index, device});
  }

  // What is due leaves, through as many regions as are over.
  template <typename Release>
  void flush(Epoch &epoch, Sequence &sequence, Release &&release) {
    while (is_let(epoch.info.thread)) {
      if ((sequence.phase & 1) != 0) {
        Region &region = sequence.regions[sequence.phase];
        if (region.is_over()) {
          sequence.regions.erase(sequence.phase++);
          continue;
        }
        const Region::Place *next = region.next_parked();
        if (next == nullptr) return;
        release_parked(epoch, region, *next, release);
      } else if (auto first = sequence.parked.begin();
                 first != sequence.parked.end() && first->first <= sequence.next &&
                 static_cast<int32_t>(first->second.header.token.phase - sequence.phase) <= 0) {
        const uint64_t before = sequence.next;
        release_first(sequence, epoch.info, release);
        epoch.left += sequence.next - before;
      } else if (auto region = sequence.regions.begin(); region != sequence.regions.end() &&
                                                         region->first == sequence.phase + 1 &&
                                                         region->second.begins_at(sequence.next)) {
        ++sequence.phase;
      } else {
        return;
      }
    }
  }

  // Of a program that has failed: what is there leaves in its order, and nothing is waited for.
  template <typename Release>
  void flush_over_gaps(Epoch &epoch, Sequence &sequence, Release &&release) {
    while (is_let(epoch.info.thread) && !(sequence.parked.empty() && sequence.regions.empty())) {
      const auto region = sequence.regions.begin();
      const auto first = sequence.parked.begin();
      if (first == sequence.parked.end() ||
          (region != sequence.regions.end() && region->first < first->second.header.token.phase)) {
        sequence.phase = region->first;
        if (!region->second.parked.empty())
          release_parked(epoch, region->second, region->second.parked.begin()->first, release);
        else
          sequence.regions.erase(sequence.phase++);
      } else {
        sequence.phase = first->second.header.token.phase;
        sequence.next = std::max(sequence.next, first->first);
        release_first(sequence, epoch.info, release);
      }
    }
  }

  // A plain record was published by a program that knows nothing of epochs. It carries the number of dispatches at that
  // moment, and leaves after all of them have ended.
  // A held stream's cannot end while a function that runs for it waits for this record.
  bool plain_due(const RecordHeader &header) const {
    const bool over_held = impatient_ || plain_awaited_ != 0;
    for (auto &[thread, stream] : streams_)
      if (!stream.epochs.empty() && !stream.nested && !(stream.held != 0 && over_held) &&
          static_cast<int32_t>(header.token.epoch - static_cast<uint32_t>(stream.epochs.front().dispatch)) >= 0)
        return false;
    return true;
  }

  // A function that runs for a plain record may wait for plain records itself. They cannot wait for it then.
  bool plain_may_leave() const {
    return is_let(kPlainThread) && (plain_held_ == 0 || impatient_ || plain_awaited_ != 0);
  }

  // Returns whether anything left, so that an epoch may have come to its turn.
  template <typename Release>
  bool flush_plain(Release &&release) {
    bool flushed = false;
    if (!plain_may_leave()) return false;
    while (!plain_.parked.empty() && plain_.parked.begin()->first <= plain_.next && is_let(kPlainThread)) {
      Parked &parked = plain_.parked.begin()->second;
      if (parked.gap_count == 0) {
        if (!plain_due(parked.header)) break;
        plain_stamp_ = parked.header.token.epoch;
        if (parked.header.reply != 0) --plain_awaited_;
      }
      release_first(plain_, kPlainInfo, release);
      flushed = true;
    }
    return flushed;
  }

  std::unordered_map<uint32_t, Stream> streams_;
  Sequence plain_;
  std::vector<std::pair<uint64_t, Stream *>> heads_;
  uint64_t scan_ = 0;
  uint64_t newest_dispatch_ = 0;
  bool plain_expected_ = false;
  int held_ = 0; // of all streams
  int plain_held_ = 0;
  int unordered_held_ = 0;   // runs of unordered functions of plain records, for which nothing waits
  uint32_t plain_stamp_ = 0; // of the newest plain record that has left
  size_t plain_awaited_ = 0; // how many parked plain records somebody waits for
  bool impatient_ = false;
  uint32_t only_ = kNobody;
  size_t open_epochs_ = 0;
  size_t parked_bytes_ = 0;
  bool any_apart_ = false;                   // whether there ever was a region that may be stuck
  std::unordered_set<uint64_t> stuck_sites_; // whose callers were what other devices waited for
};

} // namespace effects
