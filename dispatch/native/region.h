// A per-device region of a program, as the release order sees it: every device counts its own effects from 0 on, and
// they leave in the order of (index, device).
//
// Each device says when it enters, and that so many do; and when it leaves, how far it has counted. What is first among
// the places where devices stand is next; a device that has left stands nowhere.
//
// Where devices take branches of their own and also talk to each other, one that waits for an answer may be what the
// device whose turn it is waits for. Such a region may be relaxed: what is waited for then leaves after all of its own
// device's that comes before, whatever the other devices do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "record.h"

namespace effects {

// A record that came before its turn, or the place of some that were dropped.
struct Parked {
  RecordHeader header;
  Block payload;
  uint64_t gap_count = 0; // not 0: no record, this many indices were dropped
  static Parked gap(const Token &first, uint64_t count) {
    Parked parked{};
    parked.header.token = first;
    parked.gap_count = count;
    return parked;
  }
};

class Region {
public:
  using Place = std::pair<uint64_t, int32_t>; // index, device

  // `entry`: the index of the next effect around the region.
  void enter(int32_t device, uint64_t devices, uint32_t entry, bool apart) {
    devices_ = devices;
    entry_ = entry;
    apart_ = apart;
    stand(device);
    ++entered_;
  }
  // `last`: the index after the device's last effect.
  void leave(int32_t device, uint32_t last) {
    Standing &standing = stand(device);
    standing.has_left = true;
    standing.last = last;
  }

  // Somebody waits for the record that is parked here.
  void await(const Place &place) { awaited_.insert(place); }
  // The record that was parked here has gone.
  void forget(const Place &place) {
    awaited_.erase(place);
    parked.erase(place);
  }

  // Whether somebody waits who may be what the others wait for.
  bool may_be_stuck() const { return apart_ && !relaxed_ && !awaited_.empty(); }
  void relax() { relaxed_ = apart_; }

  // The place of the parked record that leaves next; null if there is none.
  const Place *next_parked() {
    if (parked.empty()) return nullptr;
    if (const Place *first = next(); first != nullptr && parked.begin()->first <= *first) return &parked.begin()->first;
    if (!relaxed_) return nullptr;
    for (const auto &[last, device] : awaited_) {
      const uint64_t at = standing_[device].index;
      uint64_t index = at;
      while (index <= last && parked.count({index, device}) != 0) ++index;
      if (index > last) return &parked.find({at, device})->first;
    }
    return nullptr;
  }

  // Whether it is the region's turn when the next effect around it has this index.
  bool begins_at(uint64_t index) const { return entered_ != 0 && entry_ == static_cast<uint32_t>(index); }

  // The place of the record that leaves next; null if that is not known yet, or there is none.
  const Place *next() {
    if (entered_ == 0 || entered_ < devices_) return nullptr;
    while (!places_.empty()) {
      const Standing &first = standing_[places_.begin()->second];
      if (!first.has_left || static_cast<uint32_t>(first.index) != first.last) return &*places_.begin();
      places_.erase(places_.begin());
    }
    return nullptr;
  }
  bool is_over() { return next() == nullptr && entered_ != 0 && entered_ >= devices_; }

  // Where a record of this token and device stands.
  Place place_of(const Token &token, int32_t device) {
    const uint64_t index = stand(device).index;
    return {index + static_cast<uint64_t>(int64_t{static_cast<int32_t>(token.index - static_cast<uint32_t>(index))}),
            device};
  }
  // The device goes on to this index.
  void move(int32_t device, uint64_t index) {
    Standing &standing = stand(device);
    if (index <= standing.index) return;
    places_.erase({standing.index, device});
    standing.index = index;
    places_.insert({index, device});
  }

  std::map<Place, Parked> parked;

private:
  struct Standing {
    uint64_t index = 0;
    bool has_left = false;
    uint32_t last = 0;
  };

  Standing &stand(int32_t device) {
    auto [it, inserted] = standing_.try_emplace(device);
    if (inserted) places_.insert({0, device});
    return it->second;
  }

  uint64_t devices_ = 0;
  uint64_t entered_ = 0;
  uint32_t entry_ = 0;
  bool apart_ = false;
  bool relaxed_ = false;
  std::set<Place> awaited_;
  std::map<int32_t, Standing> standing_;
  std::set<Place> places_;
};

} // namespace effects
