// The devices that wait for callbacks' results, by the number in the record.
//
// Any thread may call everything here. Waiters are notified without a lock: they may ask again, or run the rest of
// their program.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
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

// The continuation of a program that waited. Its argument: why the program cannot continue though it has its answer;
// empty: it can.
using Continuation = std::function<void(const std::string &failed)>;

// The error of a device whose own answer is right.
inline constexpr char kFailedElsewhere[] = "The program has failed on another device.";

// Devices that continue together from a call that all of them reach: none before all have their answers.
//
// The callbacks of one program run one after the other. A device that continued early could reach a collective, and
// wait there for a device that has no answer yet. Then
//   - a program that the late callback runs on the waiting device may queue behind the collective: a deadlock;
//   - if the late callback fails, its device never reaches the collective, and XLA ends the process after a while.
//
// Guarded by the lock of Replies.
class Together {
public:
  // The identity of a program's call, the same on all devices.
  struct Call {
    uint32_t thread, epoch;
    uint64_t site;
    int64_t traits;   // with its number among those of one site
    bool fail_as_one; // devices may wait for each other later: if one fails here, or before, none continues
    bool operator<(const Call &other) const {
      return std::tie(thread, epoch, site, traits) < std::tie(other.thread, other.epoch, other.site, other.traits);
    }
  };
  using Work = std::vector<std::function<void()>>;

  // The device, one of `devices`, has its answer or has `failed`. An answer waits for the other answers, or for a
  // failure that ends all. Returns the continuations to run now, the last device's first.
  Work arrive(const Call &call, int32_t device, uint32_t devices, bool failed, Continuation continuation);

  // No more devices of this program will come. Returns the waiting ones, which fail if all do, or if they fail as one.
  Work end(uint32_t thread, uint32_t epoch, bool all_fail);

private:
  struct Group {
    std::set<int32_t> arrived;
    bool failed = false;
    std::vector<Continuation> waiting;
  };
  static void let_go(Group &group, Work &work);

  // A device reaches a call again only after it has continued from it, or if two calls are equal in everything. So it
  // is in no group twice, and several groups of one call are rare.
  std::map<Call, std::list<Group>> groups_;
};

// A callback's answer: the bytes of its results, or an error.
struct Answer {
  std::vector<Span> results;
  std::string error; // empty: none
};

// A call of one device, by the properties that it shares with the other devices' calls.
struct CallOfDevice {
  uint64_t site;
  int64_t traits; // with its number among those of one site
  int32_t device;
};

class Replies {
public:
  // Empty if the waiter continues elsewhere.
  using Continuation = effects::Continuation;
  // Called once with the answer, by the answering thread. The returned continuation is called at once, or when all
  // devices that continue together have their answers.
  using Waiter = std::function<Continuation(const Answer &)>;

  // Registers a waiter. Returns the number for the record; 0: the program has been ended, and the waiter has been
  // called.
  uint32_t ask(Waiter waiter, const Token &token = {StreamOf(kPlainThread, 0), 0, 0, 0});

  // As ask(), for a record that `replicas` devices share: all get the one answer. Returns the number for the device
  // that publishes, and 0 for the others. The publisher is the first to come, or in a group of replicas the primary. A
  // device that comes after the answer is answered at once.
  //
  // `unordered`: an unordered call, whose token does not identify it. A device reaches a call again only after its
  // answer, so the n-th calls of all devices are the same call.
  uint32_t ask_replicated(const DeviceToken &token, uint32_t replicas, Waiter waiter,
                          const CallOfDevice *unordered = nullptr);

  // The waiter of one of `devices` devices that continue together from a call that all of them reach. `fail_as_one`: as
  // for Together.
  Waiter with_others(const Token &token, const CallOfDevice &call, uint32_t devices, bool fail_as_one, Waiter waiter);

  // Gives the answer to all waiters of this number.
  void answer(uint32_t number, const Answer &answer);
  void fail(uint32_t number, std::string why) { answer(number, {{}, std::move(why)}); }

  // This program cannot continue: its waiting devices get an error, and so do those that ask later.
  void end_program(uint32_t thread, uint32_t epoch) { end(thread, epoch, /*groups_only=*/false); }
  // One device of this program has failed. It may have been the publisher of its group, so devices in groups get an
  // error.
  void end_groups(uint32_t thread, uint32_t epoch) { end(thread, epoch, /*groups_only=*/true); }

  // A callback has ended this program on one device, and its later effects are left out: devices that continue together
  // fail, now or when they ask.
  void end_together(uint32_t thread, uint32_t epoch);

  // The host knows that this program has failed: answers are not kept for devices that have not come.
  void forget_replicated(uint32_t thread, uint32_t epoch);

  // The numbers without an answer.
  std::vector<uint32_t> open();
  bool any_open();

private:
  // An answer that outlives the call which made it.
  struct Owned {
    Owned() = default;
    explicit Owned(const Answer &answer);
    Answer view() const;
    std::vector<std::string> results;
    std::string error;
  };
  // The key of a call that several devices share: if it is ordered, stream, epoch and group; then index and phase, or
  // for an unordered call its site, traits, and number among the calls that not all devices have reached.
  using Key = std::tuple<bool, uint32_t, uint32_t, uint32_t, uint64_t, int64_t, uint32_t>;

  struct Asked {
    std::vector<Waiter> waiters;
    uint32_t replicas = 0; // the number of devices that will come; 0: one
    uint32_t came = 0;
    bool answered = false;
    DeviceToken token{};
    Key key{};                 // if several come
    std::set<int32_t> devices; // that came, if the call is unordered
    Owned answer;
  };
  static Key KeyOf(const DeviceToken &token);
  static Key KeyOf(const DeviceToken &token, const CallOfDevice &call);

  void end(uint32_t thread, uint32_t epoch, bool groups_only);
  void notify(const std::vector<Waiter> &waiters, const Answer &answer);
  void go_on(Together::Work work);

  // With `mutex_` held.
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
  std::map<Key, uint32_t> replicated_;        // the number of a shared answer
  // The part of a program that cannot continue.
  struct Ended {
    bool all = false;
    bool groups = false;   // groups of replicas; then no device waits for others
    bool together = false; // devices that continue together
  };
  std::map<std::pair<uint32_t, uint32_t>, Ended> ended_; // by thread and epoch, until the host knows it
  Together together_;
};

} // namespace effects
