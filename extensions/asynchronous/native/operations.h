// Asynchronous operations that programs have started and not yet done: what they keep between the two.
//
// An operation is known by its program, its device and a number, which begins at 1 and counts the device's operations
// of the program. All devices of a program that take the same way count the same. What is in flight lies here and in no
// buffer of XLA's, so that XLA has nothing to free, to copy or to alias.
//
// Any thread may call everything here. What waits is notified with no lock held and in a thread of its own, since it
// runs the rest of its program.
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

// A block and how much of it counts.
struct Bytes {
  explicit Bytes(const Span &span);
  Block block;
  size_t size;
};

// What devices send each other: `rank` is the sender's place in its group.
struct Exchange {
  int64_t call;   // which collective of the program it is
  uint32_t group; // those in one group exchange something
  uint32_t rank;
  std::vector<std::pair<uint32_t, std::vector<Span>>> sent; // to each of these ranks, of each value a part
  std::vector<uint32_t> senders;                            // from each of these ranks come parts, in this order
};

class Operations {
public:
  // Called once, when the results are where they go, or with why there are none.
  using Done = std::function<void(const std::string &error)>;

  // Begins an operation of this program on this device, of which nothing is kept here. Returns its number.
  uint32_t start(const Program &program, int32_t device);

  // As start(), and keeps values until they are taken, for each of so many lanes by itself. `optional`: it need not be
  // done.
  uint32_t keep(const Program &program, int32_t device, const Span *values, size_t count, uint32_t lanes,
                bool optional = false);

  // As start(), and sends its parts to the other devices. Each must come here the same number of times.
  uint32_t post(const Program &program, int32_t device, const Exchange &exchange, bool optional = false);

  // Ends an operation, or with lanes one lane of it: its results go to `outs`. Calls `done`, later perhaps, and in
  // another thread then. `where`: the line of the user's that does so.
  void take(const Program &program, int32_t device, uint32_t number, uint32_t lane, std::vector<Out> outs, Done done,
            std::string_view where = "a line that is not known");

  // How many operations the program has begun on the device that has begun the most; nothing if it has failed or ended.
  std::optional<uint32_t> started(const Program &program);

  // The program fails: so does what waits, and what comes to wait.
  void fail(const Program &program, const std::string &why);
  // The program has ended: forgets its operations. Returns how many were not done; nothing if it has failed.
  std::optional<size_t> end(const Program &program);
  // Whether there is anything to forget of any program.
  bool any() const { return any_.load(std::memory_order_relaxed) != 0; }

private:
  // What came to one device in an exchange.
  struct Inbox {
    std::map<uint32_t, std::vector<Bytes>> parts; // by the sender's rank, of each value one
    std::vector<uint32_t> senders;                // that are waited for
    std::vector<Out> outs;
    Done done; // empty: nothing waits
    bool is_complete() const;
  };
  using InboxKey = std::tuple<int64_t, uint32_t, uint32_t, uint32_t>; // call, which time, group, receiver's rank

  struct Operation {
    std::vector<Bytes> values;
    uint32_t lanes = 1, lanes_left = 1;
    bool optional = false;
    std::string give(uint32_t lane, const std::vector<Out> &outs) const; // what was wrong
    std::optional<InboxKey> inbox;                                       // of an exchange
    std::vector<uint32_t> senders;
  };
  struct OfProgram {
    std::map<int32_t, uint32_t> started;                       // by device: how many
    std::map<std::pair<int32_t, int64_t>, uint32_t> exchanged; // by device and call: how often
    std::map<std::pair<int32_t, uint32_t>, Operation> open;    // by device and number
    std::map<InboxKey, Inbox> inboxes;
    std::string failed; // why
  };
  uint32_t add(const Program &program, int32_t device, Operation operation); // with `mutex_` held
  void deliver(Inbox inbox);

  Threads threads_;
  std::atomic<size_t> any_{0}; // how many programs are in the map
  std::mutex mutex_;           // guards all below
  std::map<Program, OfProgram> programs_;
};

// The process's own.
Operations &operations();

} // namespace effects
