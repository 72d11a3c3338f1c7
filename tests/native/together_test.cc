// Replies: devices that all come to a call go on from it together.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heard.h"

namespace effects::together_test {
namespace {

using check::MakeToken;

constexpr uint32_t kThread = 7, kEpoch = 3;
const Token kToken = MakeToken(kThread, 0, kEpoch, 4);

// What devices go on with, in any order, since each has a thread for itself.
class GoneOn {
public:
  bool fail_as_one = true;

  // Asks for a device. Returns the number of its question.
  uint32_t ask(Replies &replies, int32_t device, uint32_t devices, int64_t call = 0, const Token &token = kToken) {
    const std::string name = std::to_string(device) + "." + std::to_string(call);
    Replies::Waiter waiter = [this, name](const Answer &answer) {
      return [this, name, error = answer.error](const std::string &failed) {
        std::lock_guard lock(mutex_);
        gone_.push_back(name + ":" + (error.empty() ? failed : error));
        changed_.notify_all();
      };
    };
    return replies.ask(replies.with_others(token, {11, call, device}, devices, fail_as_one, std::move(waiter)), token);
  }
  // Those that have gone on so far, when they are so many.
  std::vector<std::string> take(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_.size() >= count; });
    std::vector<std::string> all = std::exchange(gone_, {});
    std::sort(all.begin(), all.end());
    return all;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return gone_.size();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> gone_;
};

constexpr char kElsewhere[] = "The program has failed on another device.";

TEST(test_none_goes_on_before_all_have_answers) {
  Replies replies;
  GoneOn gone;
  for (int turn = 0; turn < 3; ++turn) { // as often as they come
    uint32_t numbers[3];
    for (int32_t device = 0; device < 3; ++device) numbers[device] = gone.ask(replies, device, 3);
    for (int32_t device : {2, 0}) {
      AnswerWith(replies, numbers[device], {});
      CHECK_EQ(gone.count(), 0u);
    }
    AnswerWith(replies, numbers[1], {});
    CHECK_SEEN(gone.take(3), {"0.0:", "1.0:", "2.0:"});
  }
}

// One that comes late is asked for late: the others wait for it all the same.
TEST(test_all_are_waited_for_before_they_have_come) {
  Replies replies;
  GoneOn gone;
  AnswerWith(replies, gone.ask(replies, 0, 2), {});
  CHECK(!replies.any_open());
  CHECK_EQ(gone.count(), 0u);
  AnswerWith(replies, gone.ask(replies, 1, 2), {});
  CHECK_SEEN(gone.take(2), {"0.0:", "1.0:"});
}

// Calls differ in their number, and programs in their epochs. Of calls that are the same in all, the device that has
// come to the first comes to the second.
TEST(test_calls_are_told_apart) {
  Replies replies;
  GoneOn gone;
  const Token other = MakeToken(kThread, 0, kEpoch + 1, 4);
  AnswerWith(replies, gone.ask(replies, 0, 2), {});
  AnswerWith(replies, gone.ask(replies, 1, 2, 1), {});
  AnswerWith(replies, gone.ask(replies, 1, 2, 0, other), {});
  AnswerWith(replies, gone.ask(replies, 0, 2), {});
  CHECK_EQ(gone.count(), 0u);
  AnswerWith(replies, gone.ask(replies, 1, 2), {});
  CHECK_SEEN(gone.take(2), {"0.0:", "1.0:"});
  AnswerWith(replies, gone.ask(replies, 1, 2), {});
  CHECK_SEEN(gone.take(2), {"0.0:", "1.0:"});
  AnswerWith(replies, gone.ask(replies, 0, 2, 1), {});
  CHECK_SEEN(gone.take(2), {"0.1:", "1.1:"});
  AnswerWith(replies, gone.ask(replies, 0, 2, 0, other), {});
  CHECK_SEEN(gone.take(2), {"0.0:", "1.0:"});
}

// A failure is heard at once, by those that have their answers, and by those that get them later; then it is over.
TEST(test_failure_is_all_devices) {
  Replies replies;
  GoneOn gone;
  const uint32_t first = gone.ask(replies, 0, 3), second = gone.ask(replies, 1, 3), third = gone.ask(replies, 2, 3);
  AnswerWith(replies, first, {});
  replies.fail(second, "why");
  CHECK_SEEN(gone.take(2), {std::string("0.0:") + kElsewhere, "1.0:why"});
  AnswerWith(replies, third, {});
  CHECK_SEEN(gone.take(1), {std::string("2.0:") + kElsewhere});
  for (int32_t device = 0; device < 3; ++device) AnswerWith(replies, gone.ask(replies, device, 3), {});
  CHECK_SEEN(gone.take(3), {"0.0:", "1.0:", "2.0:"});
}

// Where devices do not wait for each other afterwards each has its own answer.
TEST(test_failure_is_one_devices_own) {
  Replies replies;
  GoneOn gone;
  gone.fail_as_one = false;
  AnswerWith(replies, gone.ask(replies, 0, 3), {});
  replies.fail(gone.ask(replies, 1, 3), "why");
  CHECK_EQ(gone.count(), 0u);
  AnswerWith(replies, gone.ask(replies, 2, 3), {});
  CHECK_SEEN(gone.take(3), {"0.0:", "1.0:why", "2.0:"});
  AnswerWith(replies, gone.ask(replies, 0, 3), {});
  replies.end_groups(kThread, kEpoch); // device 1 comes no more
  AnswerWith(replies, gone.ask(replies, 2, 3), {});
  CHECK_SEEN(gone.take(2), {"0.0:", "2.0:"});
}

// Unless the program's later effects are left out: then those that wait fail, and those that come.
TEST(test_failure_that_stops_is_all_devices) {
  for (bool is_lost : {false, true}) {
    Replies replies;
    GoneOn gone;
    gone.fail_as_one = false;
    const uint32_t later = gone.ask(replies, 2, 3);
    AnswerWith(replies, gone.ask(replies, 0, 3), {});
    replies.end_together(kThread, kEpoch);
    CHECK_SEEN(gone.take(1), {std::string("0.0:") + kElsewhere});
    if (is_lost) replies.end_groups(kThread, kEpoch);
    replies.fail(gone.ask(replies, 1, 3), "why");
    AnswerWith(replies, later, {});
    CHECK_SEEN(gone.take(2), {"1.0:why", std::string("2.0:") + kElsewhere});
  }
}

// When the program ends, or a device of it is lost, no device waits any more for those that may never come.
TEST(test_no_device_is_waited_for_in_a_program_that_ends) {
  for (auto end : {&Replies::end_program, &Replies::end_groups, &Replies::forget_replicated}) {
    Replies replies;
    GoneOn gone;
    const Token other = MakeToken(kThread, 0, kEpoch + 1, 4);
    AnswerWith(replies, gone.ask(replies, 0, 3), {});
    AnswerWith(replies, gone.ask(replies, 2, 3, 0, other), {});
    const uint32_t later = gone.ask(replies, 1, 3);
    (replies.*end)(kThread, kEpoch);
    const bool is_over = end == &Replies::forget_replicated, ends_all = end == &Replies::end_program;
    if (!ends_all) CHECK_SEEN(gone.take(1), {std::string("0.0:") + kElsewhere});
    if (is_over) continue; // no device of it comes any more
    AnswerWith(replies, later, {});
    const std::string also = std::string("1.0:") + kElsewhere;
    if (ends_all)
      CHECK_SEEN(gone.take(2), {std::string("0.0:") + kElsewhere, also});
    else
      CHECK_SEEN(gone.take(1), {also});
    AnswerWith(replies, gone.ask(replies, 1, 3, 0, other), {});
    CHECK_EQ(gone.count(), 0u);
    AnswerWith(replies, gone.ask(replies, 0, 3, 0, other), {});
    CHECK_SEEN(gone.take(3), {"0.0:", "1.0:", "2.0:"});
  }
}

// Who gives the last answer may be the device itself, in its handler. It goes on when that has returned, and the others
// may wait for it: they have other threads.
TEST(test_the_last_to_come_goes_on_in_its_own_thread) {
  Replies replies;
  std::thread::id ran[2];
  std::atomic<int> gone{0};
  const auto ask = [&](int32_t device) {
    Replies::Waiter waiter = [&, device](const Answer &) {
      return [&, device](const std::string &) {
        ran[device] = std::this_thread::get_id();
        if (device == 0)
          while (gone.load() == 0) std::this_thread::yield(); // for the other device
        ++gone;
      };
    };
    return replies.ask(replies.with_others(kToken, {11, 0, device}, 2, true, std::move(waiter)), kToken);
  };
  const uint32_t first = ask(0), second = ask(1);
  AnswerWith(replies, first, {});
  AnswerWith(replies, second, {});
  while (gone.load() != 2) std::this_thread::yield();
  CHECK(ran[1] == std::this_thread::get_id());
  CHECK(ran[0] != ran[1]);
}

// Devices in threads of their own come to calls in turn, some of which fail, while one thread answers at random: all go
// on from each call, and hear of a failure if one of them has failed there.
TEST(test_many_devices_go_on_together) {
  constexpr int32_t kDevices = 4;
  constexpr int kTurns = 400;
  Replies replies;
  std::vector<std::vector<std::string>> told(kDevices, std::vector<std::string>(kTurns));
  std::atomic<bool> over{false};
  std::thread answers([&] {
    std::mt19937 random(1);
    while (!over) {
      std::vector<uint32_t> open = replies.open();
      std::shuffle(open.begin(), open.end(), random);
      for (const uint32_t number : open) random() % 50 == 0 ? replies.fail(number, "why") : replies.answer(number, {});
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> devices;
  for (int32_t device = 0; device < kDevices; ++device)
    devices.emplace_back([&, device] {
      for (int turn = 0; turn < kTurns; ++turn) {
        std::atomic<bool> goes_on{false};
        Replies::Waiter waiter = [&](const Answer &answer) {
          return [&, error = answer.error](const std::string &failed) {
            told[device][turn] = error.empty() ? failed : error;
            goes_on = true;
          };
        };
        replies.ask(replies.with_others(kToken, {11, 0, device}, kDevices, true, std::move(waiter)), kToken);
        while (!goes_on) std::this_thread::yield();
      }
    });
  for (std::thread &each : devices) each.join();
  over = true;
  answers.join();
  for (int turn = 0; turn < kTurns; ++turn)
    for (int32_t device = 1; device < kDevices; ++device) CHECK_EQ(told[device][turn].empty(), told[0][turn].empty());
  CHECK(!replies.any_open());
}

} // namespace
} // namespace effects::together_test
