// The consumer's side: takes records out of the rings, restores their order and turns them into a batch for Python.
//
// One host thread leads (see WakeUp): it calls next_batch() in a loop and replays what it gets. It holds no Python lock
// while it waits; what it gets is text that only has to be written, and records that Python must see, whose replay may
// run functions of the user's. Meanwhile it offers the lead to a thread that stands by, so that a function which waits
// for other effects does not wait in vain.
//
// Any thread may call what is for the host; the leader alone calls next_batch().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../order/release_order.h"
#include "../producer/publisher.h"
#include "batch.h"
#include "batch_builder.h"
#include "inbox.h"
#include "parking.h"
#include "replies.h"
#include "sites.h"
#include "wake_up.h"

namespace effects {

class Drain {
public:
  Drain(WakeUp &wake_up, Publisher &publisher, Sites &sites, Replies &replies);

  // Host: `thread` is about to dispatch a program whose text goes to `sink` (0: Python formats it). Returns the number
  // of its epoch. Never waits for the drain. Inline: every dispatch comes by.
  uint32_t open(uint32_t thread, uint64_t sink, const PrintOptions *options = nullptr) {
    return inbox_.open(thread, sink, options, publisher_.dispatches);
  }

  // Host: the program of this epoch failed or never ran.
  void fail(uint32_t thread, uint32_t epoch);
  // Host: it failed on this device, and goes on on others.
  void lose(uint32_t thread, uint32_t epoch, int32_t device);
  // Host: the thread has ended and all its epochs have.
  void forget(uint32_t thread) { inbox_.forget(thread); }
  // Host: a thread has its number.
  void number_anew(uint32_t thread) { inbox_.number_anew(thread, publisher_.dispatches); }
  // Host: a batch's records for Python have been replayed.
  void resume(uint32_t thread) { inbox_.post({Notice::kResume, {thread, 0, 0}, 0}); }
  // Host: nothing of this stream that has an order leaves until it is let go.
  void hold(uint32_t thread) { inbox_.post({Notice::kHold, {thread, 0, 0}, 0}); }
  void let_go(uint32_t thread) { inbox_.post({Notice::kLetGo, {thread, 0, 0}, 0}); }
  // Host: programs that this thread dispatches are part of effects that are being replayed.
  void nest(uint32_t thread) { inbox_.post({Notice::kNest, {thread, 0, 0}, 0}); }
  // A loaded program, or one that may be, has no more use for a site.
  void release_site(uint64_t site);
  // Whether all records go to Python, also those that native code could format.
  void show_python(bool all) { builder_.show_python(all); }
  // Nothing drains any more: whatever still waits for an answer gets an error.
  void fail_replies(const std::string &why);

  // How many plain epochs have been opened: the number of the next one.
  uint32_t plain_opened() { return inbox_.next_epoch(kPlainThread); }

  // Leader: everything that can leave now. Waits for something to, but not longer than `patience` while programs are
  // running; for as long as it takes while none are.
  Batch next_batch(std::chrono::milliseconds patience);

private:
  void read_inbox();
  bool collect(Batch &batch);
  bool scan(Batch &batch, bool &moved);
  void scan_ring(Batch &batch, ProducerRing &ring, bool &moved);
  void accept(Batch &batch, const std::byte *record);
  bool fall_asleep();

  WakeUp &wake_up_;
  Publisher &publisher_;
  Sites &sites_;
  Replies &replies_;
  Inbox inbox_;

  // The leader's own.
  ReleaseOrder order_;
  BatchBuilder builder_;
  Parking parking_;
  std::vector<uint32_t> late_; // numbers of replies that fail after the scan
  uint64_t scans_ = 0;         // that are over
  std::chrono::steady_clock::time_point last_batch_{};
};

} // namespace effects
