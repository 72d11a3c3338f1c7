// Asynchronous operations in flight, and the values that they keep between start and done.
//
// An operation is identified by its program, its device and a number, which counts the device's operations of the
// program from 1. Replicated operations, of which all devices make one, are counted apart: devices may differ in the
// others. Values in flight are kept here and in no buffer of XLA's, so XLA has nothing to free, to copy or to alias.
//
// Any thread may call everything here. Waiters are notified without a lock and in a thread of their own, since they run
// the rest of their program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dispatch/native/drain/threads.h"
#include "dispatch/native/producer/bytes.h"
#include "dispatch/native/producer/device_token.h"
#include "dispatch/native/wire.h"

namespace effects {

// A block and its used size.
struct Bytes {
  explicit Bytes(const Span &span);
  Block block;
  size_t size;
};

// A collective. `rank`: the device's index in its group.
struct Exchange {
  int64_t call;   // the number of the collective in the program
  uint32_t group; // devices of one group exchange values
  uint32_t rank;
  std::vector<std::pair<uint32_t, std::vector<Span>>> sent; // by receiver's rank: a part of each value
  std::vector<uint32_t> senders;                            // the senders' ranks, in the order of the results
};

class Operations {
public:
  // Called once, when the results have been copied, or with an error.
  using Done = std::function<void(const std::string &error)>;

  // Begins an operation of this program on this device that keeps no values. Returns its number.
  uint32_t start(const Program &program, int32_t device, bool replicated);

  // As start(), not replicated, and keeps values until they are taken, per lane if there are `lanes`. `optional`: it may never be done.
  uint32_t keep(const Program &program, int32_t device, const Span *values, size_t count, uint32_t lanes,
                bool optional = false);

  // As keep(), but sends its parts to the other devices. Each must come here the same number of times.
  uint32_t post(const Program &program, int32_t device, const Exchange &exchange, bool optional = false);

  // Ends an operation, or one lane of it: copies its results to `outs`. Calls `done`, perhaps later and in another
  // thread. `where`: the user's line of the done.
  void take(const Program &program, int32_t device, uint32_t number, uint32_t lane, std::vector<Out> outs, Done done,
            std::string_view where = "a line that is not known");

  // The operations that the device has begun of the program, or with `kAllDevices` the most replicated ones of any
  // device; nothing if the program has failed or ended.
  std::optional<uint32_t> started(const Program &program, int32_t device);

  // Fails the program: its waiters get an error, present and later ones.
  void fail(const Program &program, const std::string &why);
  // The program has ended: forgets its operations. Returns the number that were not done; nothing if it has failed.
  std::optional<size_t> end(const Program &program);
  // True if there is anything to forget.
  bool any() const { return any_.load(std::memory_order_relaxed) != 0; }

private:
  // The inbox of one device in a collective.
  struct Inbox {
    std::map<uint32_t, std::vector<Bytes>> parts; // by the sender's rank: a part of each value
    std::vector<uint32_t> senders;                // the awaited senders
    std::vector<Out> outs;
    Done done; // empty: there is no waiter
    bool is_complete() const;
  };
  using InboxKey = std::tuple<int64_t, uint32_t, uint32_t, uint32_t>; // call, count, group, receiver's rank

  struct Operation {
    std::vector<Bytes> values;
    uint32_t lanes = 1, lanes_left = 1;
    bool optional = false;
    std::string give(uint32_t lane, const std::vector<Out> &outs) const; // returns an error text
    std::optional<InboxKey> inbox;                                       // of a collective
    std::vector<uint32_t> senders;
  };
  struct OfProgram {
    std::map<int32_t, uint32_t> started, replicated;           // by device: the number
    std::map<std::pair<int32_t, int64_t>, uint32_t> exchanged; // by device and call: the count
    std::map<std::pair<int32_t, uint32_t>, Operation> open;    // by device and number
    std::map<InboxKey, Inbox> inboxes;
    std::string failed; // why
  };
  uint32_t add(const Program &program, int32_t device, Operation operation); // with `mutex_` held
  void deliver(Inbox inbox);

  Threads threads_;
  std::atomic<size_t> any_{0}; // the number of programs in the map
  std::mutex mutex_;           // guards all below
  std::map<Program, OfProgram> programs_;
};

// The instance of the process.
Operations &operations();

} // namespace effects
