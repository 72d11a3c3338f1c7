#include "together.h"

#include <algorithm>
#include <utility>

namespace effects {

void Together::let_go(Group &group, Work &work) {
  const std::string failed = group.failed ? kFailedElsewhere : "";
  for (Continuation &continuation : std::exchange(group.waiting, {}))
    work.push_back([continuation = std::move(continuation), failed] { continuation(failed); });
}

Together::Work Together::arrive(const Call &call, int32_t device, uint32_t devices, bool failed,
                                Continuation continuation) {
  std::list<Group> &groups = groups_[call];
  auto group =
      std::find_if(groups.begin(), groups.end(), [&](const Group &each) { return each.arrived.count(device) == 0; });
  if (group == groups.end()) group = groups.emplace(groups.end());
  group->arrived.insert(device);
  group->failed = group->failed || (failed && call.fail_as_one);
  group->waiting.insert(group->waiting.begin(), std::move(continuation));
  Work work;
  const bool all_are_here = group->arrived.size() == devices;
  if (all_are_here || group->failed) let_go(*group, work);
  if (all_are_here) groups.erase(group);
  if (groups.empty()) groups_.erase(call);
  return work;
}

Together::Work Together::end(uint32_t thread, uint32_t epoch, bool all_fail) {
  Work work;
  const auto first = groups_.lower_bound({thread, epoch, 0, INT64_MIN, false});
  auto last = first;
  for (; last != groups_.end() && last->first.thread == thread && last->first.epoch == epoch; ++last) {
    for (Group &group : last->second) {
      group.failed = group.failed || all_fail || last->first.fail_as_one;
      let_go(group, work);
    }
  }
  groups_.erase(first, last);
  return work;
}

} // namespace effects
