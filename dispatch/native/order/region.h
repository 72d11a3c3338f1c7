// A per-device region of a program, as the release order sees it: every device counts its own effects from 0 on, and
// they leave in the order of (index, device).
//
// Each device says when it enters, and how many do; and when it leaves, how far it has counted. Each device that has
// not left stands in a slot, and the first of these slots is next.
//
// If devices diverge and also communicate, the device whose slot is next may wait for a device that waits for its
// answer: a deadlock. Such a region may be relaxed: an awaited record is then released after the earlier records of its
// own device, whatever the other devices do.
//
// For the leader of the drain only.
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
  // The device has failed, in the region or before: its records are parked, and no more will come.
  void lose(int32_t device);

  // A device waits for the record that is parked here.
  void await(const Slot &slot) { awaited_.insert(slot); }
  // The record that was parked here has been released.
  void forget(const Slot &slot);

  // True if a device waits for an answer while others may wait for that device.
  bool may_be_stuck() const { return may_diverge_ && !relaxed_ && !awaited_.empty(); }
  void relax() { relaxed_ = may_diverge_; }

  // The slot of the parked record that is released next; null if there is none.
  const Slot *next_parked();

  // True if the region comes next when the next effect around it has this index.
  bool begins_at(uint64_t index) const { return devices_ != 0 && entry_ == static_cast<uint32_t>(index); }

  // The slot of the record that is released next; null if it is not known yet, or there is none.
  const Slot *next();
  bool is_over() { return next() == nullptr && all_are_here(); }

  // The slot of a record of this token and device.
  Slot slot_of(const Token &token, int32_t device);
  // Moves the device to this index.
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
  // True if no more records come from the device in this slot.
  bool is_through(const Slot &slot) const;
  // True if all devices have entered, except those that failed before.
  bool all_are_here() const { return devices_ != 0 && entered_ + lost_ahead_ >= devices_; }

  uint64_t devices_ = 0; // the number of devices that enter; 0 until one has
  uint64_t entered_ = 0;
  uint64_t lost_ahead_ = 0; // the number that failed before they entered
  uint32_t entry_ = 0;
  bool may_diverge_ = false;
  bool relaxed_ = false;
  std::set<Slot> awaited_;
  std::map<int32_t, Standing> standing_;
  std::set<Slot> slots_; // where devices stand
};

} // namespace effects
