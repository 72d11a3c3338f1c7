#include "replies.h"

#include <algorithm>
#include <iterator>
#include <utility>
namespace effects {

uint32_t Replies::ask(Waiter waiter, const Token &token) {
  std::unique_lock lock(mutex_);
  if (has_ended(token, /*in_group=*/false)) {
    lock.unlock();
    notify({std::move(waiter)}, {{}, kFailedElsewhere});
    return 0;
  }
  const uint32_t number = next_number();
  asked_[number].token.token = token;
  asked_[number].waiters.push_back(std::move(waiter));
  return number;
}

// The first of these calls that the device has not reached; a new call if it has reached all.
Replies::Key Replies::find_unanswered(Key key, int32_t device) const {
  uint32_t &turn = std::get<6>(key);
  for (auto it = replicated_.lower_bound(key); it != replicated_.end(); ++it) {
    const uint32_t found = std::get<6>(it->first);
    if (Key same = it->first; std::get<6>(same) = turn, same != key) break; // another call
    turn = found;
    if (asked_.at(it->second).devices.count(device) == 0) break;
    ++turn;
  }
  return key;
}

uint32_t Replies::ask_replicated(const DeviceToken &token, uint32_t replicas, Waiter waiter,
                                 const CallOfDevice *unordered) {
  std::unique_lock lock(mutex_);
  if (token.has_group && has_ended(token.token, /*in_group=*/true)) {
    lock.unlock();
    notify({std::move(waiter)}, {{}, kFailedElsewhere});
    return 0;
  }
  const Key key =
      unordered == nullptr ? KeyOf(token) : find_unanswered(KeyOf(token, *unordered), unordered->device);
  auto [it, first] = replicated_.try_emplace(key, 0);
  if (first) it->second = next_number();
  const uint32_t number = it->second;
  Asked &asked = asked_[number];
  asked.token = token;
  asked.key = key;
  asked.replicas = replicas;
  ++asked.came;
  if (unordered != nullptr) asked.devices.insert(unordered->device);
  if (!asked.answered) {
    asked.waiters.push_back(std::move(waiter));
    return (token.has_group ? token.is_primary() : first) ? number : 0;
  }
  const Owned owned = asked.came == replicas ? std::move(asked.answer) : asked.answer;
  if (asked.came == replicas) forget(number);
  lock.unlock();
  notify({std::move(waiter)}, owned.view());
  return 0;
}

// Once a device of the program has failed, no device waits for others: the failed one may never come.
Replies::Waiter Replies::with_others(const Token &token, const CallOfDevice &call, uint32_t devices, bool fail_as_one,
                                     Waiter waiter) {
  const Together::Call shared{ThreadOf(token), token.epoch, call.site, call.traits, fail_as_one};
  return [this, shared, device = call.device, devices, waiter = std::move(waiter)](const Answer &answer) {
    Continuation own = waiter(answer);
    std::lock_guard lock(mutex_);
    if (const auto ended = ended_.find({shared.thread, shared.epoch}); ended != ended_.end()) {
      if (!ended->second.all && !ended->second.together && !shared.fail_as_one) return own;
      return Continuation([own = std::move(own)](const std::string &) { own(kFailedElsewhere); });
    }
    Together::Work all = together_.arrive(shared, device, devices, !answer.error.empty(), std::move(own));
    if (all.empty()) return Continuation();
    return Continuation([this, all = std::move(all)](const std::string &) { go_on(all); });
  };
}

void Replies::answer(uint32_t number, const Answer &answer) {
  std::vector<Waiter> waiters;
  {
    std::lock_guard lock(mutex_);
    auto it = asked_.find(number);
    if (it == asked_.end() || it->second.answered) return;
    waiters = std::move(it->second.waiters);
    if (it->second.came >= it->second.replicas) {
      forget(number);
    } else {
      it->second.answered = true;
      it->second.answer = Owned(answer);
    }
  }
  notify(waiters, answer);
}

void Replies::end(uint32_t thread, uint32_t epoch, bool groups_only) {
  std::vector<Waiter> waiters;
  Together::Work held;
  {
    std::lock_guard lock(mutex_);
    Ended &ended = ended_[{thread, epoch}];
    ended.groups = true;
    ended.all = ended.all || !groups_only;
    held = together_.end(thread, epoch, ended.all || ended.together);
    for (auto it = asked_.begin(); it != asked_.end();) {
      Asked &asked = it->second;
      const Token &token = asked.token.token;
      const bool is_whole = asked.replicas != 0 && !asked.token.has_group;
      if (is_whole || (groups_only && !asked.token.has_group) || ThreadOf(token) != thread || token.epoch != epoch) {
        ++it;
        continue;
      }
      if (asked.replicas != 0) replicated_.erase(asked.key);
      std::move(asked.waiters.begin(), asked.waiters.end(), std::back_inserter(waiters));
      it = asked_.erase(it);
    }
  }
  for (auto &work : held) threads_.run(std::move(work)); // the caller must not wait where they do
  notify(waiters, {{}, kFailedElsewhere});
}

void Replies::end_together(uint32_t thread, uint32_t epoch) {
  Together::Work held;
  {
    std::lock_guard lock(mutex_);
    ended_[{thread, epoch}].together = true;
    held = together_.end(thread, epoch, /*all_fail=*/true);
  }
  for (auto &work : held) threads_.run(std::move(work)); // the caller must not wait where they do
}

void Replies::forget_replicated(uint32_t thread, uint32_t epoch) {
  std::vector<Waiter> waiters;
  Together::Work held;
  {
    std::lock_guard lock(mutex_);
    held = together_.end(thread, epoch, /*all_fail=*/true);
    ended_.erase({thread, epoch});
    for (auto it = replicated_.begin(); it != replicated_.end();) {
      const auto asked = asked_.find(it->second);
      const Token &token = asked->second.token.token;
      if (ThreadOf(token) != thread || token.epoch != epoch) {
        ++it;
        continue;
      }
      std::move(asked->second.waiters.begin(), asked->second.waiters.end(), std::back_inserter(waiters));
      asked_.erase(asked);
      it = replicated_.erase(it);
    }
  }
  for (auto &work : held) threads_.run(std::move(work)); // the caller must not wait where they do
  notify(waiters, {{}, kFailedElsewhere});
}

std::vector<uint32_t> Replies::open() {
  std::lock_guard lock(mutex_);
  std::vector<uint32_t> numbers;
  for (const auto &[number, asked] : asked_)
    if (!asked.answered) numbers.push_back(number);
  return numbers;
}

bool Replies::any_open() {
  std::lock_guard lock(mutex_);
  return std::any_of(asked_.begin(), asked_.end(), [](const auto &entry) { return !entry.second.answered; });
}

Replies::Owned::Owned(const Answer &answer) : error(answer.error) {
  for (const Span &span : answer.results) results.emplace_back(static_cast<const char *>(span.data), span.size);
}

Answer Replies::Owned::view() const {
  Answer answer{{}, error};
  for (const std::string &bytes : results) answer.results.push_back({bytes.data(), bytes.size()});
  return answer;
}

Replies::Key Replies::KeyOf(const DeviceToken &token) {
  const auto &[stream, epoch, phase, index] = token.token;
  return {true, stream, epoch, token.replicas.group, index, phase, 0};
}

Replies::Key Replies::KeyOf(const DeviceToken &token, const CallOfDevice &call) {
  return {false, token.token.stream, token.token.epoch, token.replicas.group, call.site, call.traits, 0};
}

void Replies::notify(const std::vector<Waiter> &waiters, const Answer &answer) {
  Together::Work work;
  for (const Waiter &waiter : waiters)
    if (Continuation continuation = waiter(answer))
      work.push_back([continuation = std::move(continuation)] { continuation({}); });
  go_on(std::move(work));
}

// Devices that continue at the same time may come to wait for each other. In one thread, that would be a deadlock:
//   1. The continuation of device 0 runs its program up to a collective, and waits there for device 1.
//   2. The continuation of device 1 stands behind it in the same thread.
// So each continuation gets a thread; the first gets the calling thread. If a device's thread calls, the first must be
// that device's own: another one might wait for this device, which continues only when its handler has returned.
void Replies::go_on(Together::Work work) {
  for (size_t i = 1; i < work.size(); ++i) threads_.run(std::move(work[i]));
  if (!work.empty()) work[0]();
}

uint32_t Replies::next_number() {
  do ++last_;
  while (last_ == 0 || asked_.count(last_) != 0);
  return last_;
}

void Replies::forget(uint32_t number) {
  auto it = asked_.find(number);
  if (it->second.replicas != 0) replicated_.erase(it->second.key);
  asked_.erase(it);
}

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
