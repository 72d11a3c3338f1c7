// Who waits for what a callback returns: from a number in a record to the devices that wait for its answer.
//
// Any thread may call everything here. Waiters are notified with no lock held: they may ask again, or run the rest of
// their program.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../producer/bytes.h"
#include "../producer/device_token.h"
#include "../wire.h"
#include "threads.h"

namespace effects {

// The rest of a program that waited. It is given why the program cannot go on though it has its answer; empty: it goes
// on.
using Continuation = std::function<void(const std::string &failed)>;

// Why a device fails whose own answer is right.
inline constexpr char kFailedElsewhere[] = "The program has failed on another device.";

// Devices that go on together from a call to which all of them come: none before all have their answers.
//
// The functions of one program are called one after the other. A device that went on with its answer could come to
// where devices exchange values, and wait there for one that has none yet. Then
//   - what that one's function runs on the device that waits may stand behind the exchange: a deadlock;
//   - if that one's function fails, it never comes to the exchange, and XLA ends the process after a while.
//
// Replies guards this with its lock.
class Together {
public:
  // A call of a program, as it is the same on all devices.
  struct Call {
    uint32_t thread, epoch;
    uint64_t site;
    int64_t traits;   // with its number among those of one site
    bool fail_as_one; // devices may wait for each other afterwards: if one fails here, or before, none goes on
    bool operator<(const Call &other) const {
      return std::tie(thread, epoch, site, traits) < std::tie(other.thread, other.epoch, other.site, other.traits);
    }
  };
  using Work = std::vector<std::function<void()>>;

  // The device has its answer, or has `failed`, and is one of so many. An answer waits for the others' or for a failure
  // that is theirs too. Returns what goes on now, the device that came last first.
  Work arrive(const Call &call, int32_t device, uint32_t devices, bool failed, Continuation continuation);

  // Devices of this program come no more. Returns those that wait, which fail if all do, or if they fail as one.
  Work end(uint32_t thread, uint32_t epoch, bool all_fail);

private:
  struct Group {
    std::set<int32_t> arrived;
    bool failed = false;
    std::vector<Continuation> waiting;
  };
  static void let_go(Group &group, Work &work);

  // A device comes to a call again only when it has gone on from it, or when two such calls are equal in all. So it is
  // in no group twice, and several groups of one call are rare.
  std::map<Call, std::list<Group>> groups_;
};

// What a callback returned: the bytes of its results, or why there are none.
struct Answer {
  std::vector<Span> results;
  std::string error; // empty: none
};

// A call of one of the devices of a program, by what the others' has too.
struct CallOfDevice {
  uint64_t site;
  int64_t traits; // with its number among those of one site
  int32_t device;
};

class Replies {
public:
  // Empty if what waits goes on elsewhere.
  using Continuation = effects::Continuation;
  // Called once, by the thread that answers, with the answer. The continuation that it returns is called then, or when
  // all devices have their answers that go on together.
  using Waiter = std::function<Continuation(const Answer &)>;

  // Registers a waiter. The number goes into the record; 0: its program has been ended, and the waiter has been called.
  uint32_t ask(Waiter waiter, const Token &token = {StreamOf(kPlainThread, 0), 0, 0, 0});

  // As ask(), for a record that `replicas` devices share: they all get the one answer. Returns the number for
  // the one that publishes, and 0 for the others. It is the first to come, or in a group of replicas the primary one.
  // A device that comes after the answer is answered at once.
  uint32_t ask_replicated(const DeviceToken &token, uint32_t replicas, Waiter waiter);

  // As ask_replicated(), for a call without an order, whose token does not tell it from others. A device comes to one
  // call again only when it has been answered, so that the calls of all devices are the same one by one.
  uint32_t ask_replicated(const DeviceToken &token, uint32_t replicas, const CallOfDevice &call, Waiter waiter);

  // The waiter of a device that goes on together with others from a call to which all of these come: so many, it too.
  // `fail_as_one`: as for Together.
  Waiter with_others(const Token &token, const CallOfDevice &call, uint32_t devices, bool fail_as_one, Waiter waiter);

  // Gives the answer to all waiters of this number.
  void answer(uint32_t number, const Answer &answer);
  void fail(uint32_t number, std::string why) { answer(number, {{}, std::move(why)}); }

  // This program cannot go on: its devices that wait get an error, and so do those that ask later.
  void end_program(uint32_t thread, uint32_t epoch) { end(thread, epoch, /*groups_only=*/false); }
  // One device of this program has failed, and may have been the one that publishes for its group. So only devices in
  // groups get an error.
  void end_groups(uint32_t thread, uint32_t epoch) { end(thread, epoch, /*groups_only=*/true); }

  // A callback has ended this program on one device, and its later effects are left out: devices that go on together
  // fail, and those that would later.
  void end_together(uint32_t thread, uint32_t epoch);

  // The host knows that this program has failed: what several devices share is not kept for those that have not come.
  void forget_replicated(uint32_t thread, uint32_t epoch);

  // Numbers that have no answer yet.
  std::vector<uint32_t> open();
  bool any_open();

private:
  // An answer that outlives the call which gave it.
  struct Owned {
    Owned() = default;
    explicit Owned(const Answer &answer);
    Answer view() const;
    std::vector<std::string> results;
    std::string error;
  };
  // What tells apart the calls that several devices share: whether it has an order, stream, epoch and group; then its
  // index and phase, or without an order its site and traits, and which of the calls that not all devices have come to
  // it is.
  using Key = std::tuple<bool, uint32_t, uint32_t, uint32_t, uint64_t, int64_t, uint32_t>;

  struct Asked {
    std::vector<Waiter> waiters;
    uint32_t replicas = 0; // how many will come; 0: only the one
    uint32_t came = 0;
    bool answered = false;
    DeviceToken token{};
    Key key{};                 // if several will come
    std::set<int32_t> devices; // that came, if the call has no order
    Owned answer;
  };
  static Key KeyOf(const DeviceToken &token);
  static Key KeyOf(const DeviceToken &token, const CallOfDevice &call);

  void end(uint32_t thread, uint32_t epoch, bool groups_only);
  void notify(const std::vector<Waiter> &waiters, const Answer &answer);
  void go_on(Together::Work work);

  uint32_t join(std::unique_lock<std::mutex> lock, const Key &key, const DeviceToken &token, uint32_t replicas,
                std::optional<int32_t> device, Waiter waiter);

  // All with `mutex_` held.
  Key find_unanswered(Key key, int32_t device) const;
  uint32_t next_number();
  void forget(uint32_t number);
  bool has_ended(const Token &token, bool in_group) const {
    const auto it = ended_.find({ThreadOf(token), token.epoch});
    return it != ended_.end() && (it->second.all || (in_group && it->second.groups));
  }

  Threads threads_;
  std::mutex mutex_; // guards all below
  uint32_t last_ = 0;
  std::unordered_map<uint32_t, Asked> asked_; // by number
  std::map<Key, uint32_t> replicated_;        // number of what several devices ask for
  // What cannot go on of a program.
  struct Ended {
    bool all = false;
    bool groups = false;   // of replicas; then no device waits for others
    bool together = false; // devices that go on together
  };
  std::map<std::pair<uint32_t, uint32_t>, Ended> ended_; // by thread and epoch, until the host knows it
  Together together_;
};

} // namespace effects
