// A per-device region of a program, as the release order sees it: every device counts its own effects from 0 on, and
// they leave in the order of (index, device).
//
// Each device says when it enters, and that so many do; and when it leaves, how far it has counted. What is first among
// the slots where devices stand is next; a device that has left stands nowhere.
//
// Where devices take branches of their own and also talk to each other, one that waits for an answer may be what the
// device whose slot is next waits for: a deadlock. Such a region may be relaxed: what is waited for then leaves after
// all of its own device's that comes before, whatever the other devices do.
//
// The leader of the drain alone calls everything here.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "parked.h"

namespace effects {

class Region {
public:
  using Slot = std::pair<uint64_t, int32_t>; // index, device

  // `entry`: the index of the next effect around the region.
  void enter(int32_t device, uint64_t devices, uint32_t entry, bool may_diverge);
  // `last`: the index after the device's last effect.
  void leave(int32_t device, uint32_t last);
  // The device has failed, here or before it came here: what it has published is parked, and it publishes no more.
  void lose(int32_t device);

  // Somebody waits for the record that is parked here.
  void await(const Slot &slot) { awaited_.insert(slot); }
  // The record that was parked here has gone.
  void forget(const Slot &slot);

  // Whether a device waits for an answer while the others may wait for that device.
  bool may_be_stuck() const { return may_diverge_ && !relaxed_ && !awaited_.empty(); }
  void relax() { relaxed_ = may_diverge_; }

  // The slot of the parked record that leaves next; null if there is none.
  const Slot *next_parked();

  // Whether the region comes next when the next effect around it has this index.
  bool begins_at(uint64_t index) const { return devices_ != 0 && entry_ == static_cast<uint32_t>(index); }

  // The slot of the record that leaves next; null if that is not known yet, or there is none.
  const Slot *next();
  bool is_over() { return next() == nullptr && all_are_here(); }

  // The slot of a record of this token and device.
  Slot slot_of(const Token &token, int32_t device);
  // The device goes on to this index.
  void move(int32_t device, uint64_t index);

  std::map<Slot, Parked> parked;

private:
  struct Standing {
    uint64_t index = 0;
    bool has_entered = false;
    bool has_left = false;
    bool is_lost = false;
    uint32_t last = 0;
  };

  Standing &stand(int32_t device);
  // Whether nothing more comes of the device that stands in this slot.
  bool is_through(const Slot &slot) const;
  // Whether all devices have entered that ever will.
  bool all_are_here() const { return devices_ != 0 && entered_ + lost_ahead_ >= devices_; }

  uint64_t devices_ = 0; // how many enter; 0 until one has
  uint64_t entered_ = 0;
  uint64_t lost_ahead_ = 0; // how many have failed before they entered
  uint32_t entry_ = 0;
  bool may_diverge_ = false;
  bool relaxed_ = false;
  std::set<Slot> awaited_;
  std::map<int32_t, Standing> standing_;
  std::set<Slot> slots_; // where devices stand
};

} // namespace effects
