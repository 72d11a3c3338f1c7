// Devices that go on together from a call to which all of them come: none before all have their answers.
//
// The functions of one program are called one after the other. A device that went on with its answer could come to
// where devices exchange values, and wait there for one that has none yet. Then
//   - what that one's function runs on the device that waits may stand behind the exchange: a deadlock;
//   - if that one's function fails, it never comes to the exchange, and XLA ends the process after a while.
//
// Replies guards this with its lock.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace effects {

// The rest of a program that waited. It is given why the program cannot go on though it has its answer; empty: it goes
// on.
using Continuation = std::function<void(const std::string &failed)>;

// Why a device fails whose own answer is right.
inline constexpr char kFailedElsewhere[] = "The program has failed on another device.";

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

} // namespace effects
