#include "together.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace effects {
namespace {

constexpr char kFailed[] = "The program has failed on another device.";

} // namespace

Together::GoOn Together::arrive(const Call &call, int32_t device, uint32_t devices, bool failed,
                                Continuation continuation) {
  std::list<Group> &groups = groups_[call];
  auto group =
      std::find_if(groups.begin(), groups.end(), [&](const Group &each) { return each.arrived.count(device) == 0; });
  if (group == groups.end()) group = groups.emplace(groups.end());
  group->arrived.insert(device);
  group->failed = group->failed || failed;
  group->waiting.insert(group->waiting.begin(), std::move(continuation));
  const bool all_are_here = group->arrived.size() == devices;
  if (!all_are_here && !group->failed) return {};
  GoOn result{std::exchange(group->waiting, {}), group->failed ? kFailed : ""};
  if (all_are_here) groups.erase(group);
  if (groups.empty()) groups_.erase(call);
  return result;
}

Together::GoOn Together::end(uint32_t thread, uint32_t epoch) {
  GoOn result{{}, kFailed};
  const auto first = groups_.lower_bound({thread, epoch, 0, INT64_MIN});
  auto last = first;
  for (; last != groups_.end() && last->first.thread == thread && last->first.epoch == epoch; ++last)
    for (Group &group : last->second)
      std::move(group.waiting.begin(), group.waiting.end(), std::back_inserter(result.continuations));
  groups_.erase(first, last);
  return result;
}

} // namespace effects
