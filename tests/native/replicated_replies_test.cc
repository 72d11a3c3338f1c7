// Replies: what several devices ask for alike has one answer, and ends with their program.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heard.h"

namespace effects::replicated_replies_test {
namespace {

using check::MakeToken;

// Of the devices that publish alike the first gets a number, the others 0, and all the one answer, also those that come
// after it was given, whose bytes are gone by then.
TEST(test_replicated_devices_share_an_answer) {
  for (uint32_t copies : {1u, 2u, 3u, 8u}) {
    for (uint32_t early = 1; early <= copies; ++early) {
      Replies replies;
      Heard heard;
      const Token token = MakeToken(1, 2, 3, 4);
      uint32_t number = 0;
      std::vector<std::string> expected;
      for (uint32_t device = 0; device < copies; ++device) {
        const std::string name = std::to_string(device);
        if (device == early) {
          AnswerWith(replies, number, {"one", "two"});
          CHECK_EQ(heard.seen.size(), size_t{early});
        }
        const uint32_t mine = replies.ask_replicated({token}, copies, heard.waiter(name));
        CHECK_EQ(mine == 0, device != 0);
        if (device == 0) number = mine;
        expected.push_back(name + ":one,two");
      }
      if (early == copies) AnswerWith(replies, number, {"one", "two"});
      CHECK(heard.take() == expected);
      CHECK(Open(replies).empty());
    }
  }
}

// Calls without an order have one token. The site, its number among calls of that site, and how often a device has come
// tell them apart, also where one device is ahead of the others.
TEST(test_unordered_calls_are_told_apart) {
  Replies replies;
  Heard heard;
  const DeviceToken token{MakeToken(1, 2, 3, 4)};
  const auto ask = [&](uint64_t site, int64_t traits, int32_t device, const char *name, DeviceToken of = {}) {
    const CallOfDevice call{site, traits, device};
    return replies.ask_replicated(of.token.epoch != 0 ? of : token, 2, heard.waiter(name), &call);
  };
  const uint32_t first = ask(7, 0, 0, "first 0");
  const uint32_t of_site = ask(8, 0, 0, "site 0"), of_traits = ask(7, 1, 0, "traits 0");
  const uint32_t of_epoch = ask(7, 0, 0, "epoch 0", {MakeToken(1, 2, 4, 4)});
  CHECK((std::set<uint32_t>{0, first, of_site, of_traits, of_epoch}.size() == 5));
  AnswerWith(replies, first, {"a"}); // device 1 has not come yet
  const uint32_t second = ask(7, 0, 0, "second 0");
  CHECK(second != 0 && second != first);
  CHECK_SEEN(heard.take(), {"first 0:a"});
  CHECK_EQ(ask(7, 0, 1, "first 1"), 0u);
  CHECK_EQ(ask(7, 0, 1, "second 1"), 0u);
  CHECK_SEEN(heard.take(), {"first 1:a"});
  AnswerWith(replies, second, {"b"});
  CHECK_SEEN(heard.take(), {"second 0:b", "second 1:b"});
  CHECK_EQ(ask(7, 1, 1, "traits 1"), 0u);
  AnswerWith(replies, of_traits, {"c"});
  CHECK_SEEN(heard.take(), {"traits 0:c", "traits 1:c"});
  CHECK((Open(replies) == std::set<uint32_t>{of_site, of_epoch}));
  replies.forget_replicated(1, 4);
  replies.forget_replicated(1, 3);
  CHECK(Open(replies).empty());
  const uint32_t again = ask(7, 0, 1, "again 1"); // what is over does not count
  CHECK(again != 0);
  CHECK_EQ(ask(7, 0, 0, "again 0"), 0u);
}

// A failure is shared as well, and the late ones hear it.
TEST(test_replicated_devices_share_a_failure) {
  Replies replies;
  Heard heard;
  const Token token = MakeToken(1, 0, 0, 0);
  const uint32_t number = replies.ask_replicated({token}, 3, heard.waiter("a"));
  CHECK_EQ(replies.ask_replicated({token}, 3, heard.waiter("b")), 0u);
  replies.fail(number, "why");
  CHECK_SEEN(heard.take(), {"a!why", "b!why"});
  AnswerWith(replies, number, {"x"}); // it is answered
  CHECK_EQ(replies.ask_replicated({token}, 3, heard.waiter("c")), 0u);
  CHECK_SEEN(heard.take(), {"c!why"});
}

// When all devices have come and have their answer, nothing is remembered: the same token is asked for anew.
TEST(test_replicated_answer_is_forgotten) {
  for (bool late : {false, true}) {
    Replies replies;
    Heard heard;
    const Token token = MakeToken(1, 0, 0, 0);
    const uint32_t first = replies.ask_replicated({token}, 2, heard.waiter("a"));
    if (late) AnswerWith(replies, first, {"old"});
    CHECK_EQ(replies.ask_replicated({token}, 2, heard.waiter("b")), 0u);
    if (!late) AnswerWith(replies, first, {"old"});
    CHECK_SEEN(heard.take(), {"a:old", "b:old"});

    const uint32_t second = replies.ask_replicated({token}, 2, heard.waiter("c"));
    CHECK(second != 0);
    CHECK((Open(replies) == std::set<uint32_t>{second}));
    AnswerWith(replies, first, {"nobody's"});
    CHECK_SEEN(heard.take(), {});
    AnswerWith(replies, second, {"new"});
    CHECK_EQ(replies.ask_replicated({token}, 2, heard.waiter("d")), 0u);
    CHECK_SEEN(heard.take(), {"c:new", "d:new"});
  }
}

// When a program fails, all who wait for what its devices ask for alike hear so, and nothing of it is remembered: an
// answer that comes later is for nobody, and who asks later asks anew. Others wait on: of another program, or alone.
// All devices of a program that cannot go on are told, those too that ask later, until it is known to have failed.
TEST(test_end_program) {
  Replies replies;
  Heard heard;
  const Token one = MakeToken(1, 0, 3, 0), two = MakeToken(1, 0, 3, 7), other = MakeToken(1, 0, 4, 0);
  const std::string ended = "!The program has failed on another device.";
  CHECK(replies.ask(heard.waiter("a"), one) != 0);
  const uint32_t kept = replies.ask(heard.waiter("other"), other);
  replies.end_program(1, 3);
  CHECK_SEEN(heard.take(), {"a" + ended});
  CHECK_EQ(replies.ask(heard.waiter("late"), two), uint32_t{0});
  CHECK_SEEN(heard.take(), {"late" + ended});
  replies.forget_replicated(1, 3);
  CHECK(replies.ask(heard.waiter("new"), two) != 0);
  AnswerWith(replies, kept, {"x"});
  CHECK_SEEN(heard.take(), {"other:x"});
}

// Where one device has failed, devices that have an answer of their own still get it; those in groups do not, since the
// one that asks for the group may be the one that failed.
TEST(test_end_groups) {
  Replies replies;
  Heard heard;
  const Token token = MakeToken(1, 0, 3, 0);
  const std::string ended = "!The program has failed on another device.";
  DeviceToken in_group{token};
  in_group.has_group = true;
  in_group.replicas.replica = 1;
  const uint32_t alone = replies.ask(heard.waiter("alone"), token);
  CHECK_EQ(replies.ask_replicated(in_group, 2, heard.waiter("replica")), uint32_t{0});
  replies.end_groups(1, 3);
  CHECK_SEEN(heard.take(), {"replica" + ended});
  CHECK_EQ(replies.ask_replicated(in_group, 2, heard.waiter("late")), uint32_t{0});
  CHECK_SEEN(heard.take(), {"late" + ended});
  AnswerWith(replies, alone, {"x"});
  AnswerWith(replies, replies.ask(heard.waiter("next"), token), {"y"});
  CHECK_SEEN(heard.take(), {"alone:x", "next:y"});
  replies.end_program(1, 3);
  replies.end_groups(1, 3); // has no more to say
  CHECK_EQ(replies.ask(heard.waiter("ended"), token), uint32_t{0});
  CHECK_SEEN(heard.take(), {"ended" + ended});
}

TEST(test_forget_replicated) {
  Replies replies;
  Heard heard;
  const Token token = MakeToken(1, 2, 3, 4);
  const uint32_t number = replies.ask_replicated({token}, 3, heard.waiter("a"));
  CHECK_EQ(replies.ask_replicated({token}, 3, heard.waiter("b")), 0u);
  const uint32_t sibling = replies.ask_replicated({MakeToken(1, 0, 3, 0)}, 2, heard.waiter("c"));
  const uint32_t thread = replies.ask_replicated({MakeToken(2, 2, 3, 4)}, 2, heard.waiter("thread"));
  const uint32_t epoch = replies.ask_replicated({MakeToken(1, 2, 4, 4)}, 2, heard.waiter("epoch"));
  const uint32_t alone = replies.ask(heard.waiter("alone"));
  replies.forget_replicated(3, 3);
  CHECK_SEEN(heard.take(), {});
  replies.forget_replicated(1, 3);
  std::vector<std::string> told = heard.take();
  std::sort(told.begin(), told.end());
  const std::string why = "!The program has failed on another device.";
  CHECK_SEEN(told, {"a" + why, "b" + why, "c" + why});
  CHECK((Open(replies) == std::set<uint32_t>{thread, epoch, alone}));
  AnswerWith(replies, number, {"x"});
  replies.fail(sibling, "late");
  replies.forget_replicated(1, 3);
  CHECK_SEEN(heard.take(), {});

  const uint32_t anew = replies.ask_replicated({token}, 1, heard.waiter("anew"));
  CHECK(anew != 0 && anew != number);
  AnswerWith(replies, anew, {"y"});
  CHECK_SEEN(heard.take(), {"anew:y"});
  AnswerWith(replies, thread, {"z"});
  AnswerWith(replies, epoch, {"z"});
  AnswerWith(replies, alone, {"z"});
  CHECK_SEEN(heard.take(), {"thread:z", "epoch:z", "alone:z"});
}

// An answer that was given and is kept for the devices that have not come is forgotten with its program, and who has
// had it hears nothing more.
TEST(test_forget_replicated_answer) {
  Replies replies;
  Heard heard;
  const Token token = MakeToken(1, 0, 0, 0);
  const uint32_t number = replies.ask_replicated({token}, 2, heard.waiter("a"));
  AnswerWith(replies, number, {"old"});
  replies.forget_replicated(1, 0);
  CHECK_SEEN(heard.take(), {"a:old"});
  CHECK(Open(replies).empty());
  CHECK(replies.ask_replicated({token}, 2, heard.waiter("b")) != 0); // not the old answer
  CHECK_SEEN(heard.take(), {});
}

// Who is told of the failure is called with no lock held, and what he holds is freed.
TEST(test_forget_replicated_calls_without_a_lock) {
  Replies replies;
  Heard heard;
  const auto held = std::make_shared<int>(0);
  const Token token = MakeToken(1, 0, 0, 0);
  replies.ask_replicated({token}, 2, [&, held](const Answer &answer) {
    CHECK(!answer.error.empty() && answer.results.empty());
    CHECK(Open(replies).empty()); // forgotten before he is told
    replies.forget_replicated(1, 0);
    replies.fail(replies.ask_replicated({token}, 1, heard.waiter("inner")), "why");
    return Replies::Continuation();
  });
  CHECK_EQ(held.use_count(), 2l);
  replies.forget_replicated(1, 0);
  CHECK_EQ(held.use_count(), 1l);
  CHECK_SEEN(heard.take(), {"inner!why"});
}

// Programs fail while their devices ask and a thread answers: every waiter is called once.
TEST(test_programs_fail_while_devices_ask) {
  constexpr uint32_t kDevices = 3;
  constexpr uint32_t kEpochs = 300;
  constexpr uint32_t kEach = 5;
  Replies replies;
  std::vector<std::atomic<int>> told(kDevices * kEpochs * kEach);
  std::atomic<uint32_t> asking{kDevices};
  std::vector<std::thread> threads;
  for (uint32_t device = 0; device < kDevices; ++device)
    threads.emplace_back([&, device] {
      for (uint32_t at = 0; at < kEpochs * kEach; ++at) {
        std::atomic<int> &mine = told[device * kEpochs * kEach + at];
        replies.ask_replicated({MakeToken(1, 0, at / kEach, at % kEach)}, kDevices, [&mine](const Answer &) {
          mine.fetch_add(1);
          return Replies::Continuation();
        });
      }
      --asking;
    });
  threads.emplace_back([&] {
    for (bool last = false; !last;) {
      last = asking == 0;
      for (uint32_t epoch = 0; epoch < kEpochs; epoch += 2) replies.forget_replicated(1, epoch);
    }
  });
  threads.emplace_back([&] {
    for (bool last = false; !last;) {
      last = asking == 0;
      for (const uint32_t number : replies.open()) AnswerWith(replies, number, {"x"});
    }
  });
  for (std::thread &thread : threads) thread.join();
  CHECK(replies.open().empty());
  for (const std::atomic<int> &times : told) CHECK_EQ(times.load(), 1);
}

// Devices that have one answer go on at the same time: they may wait for each other there, more than once.
TEST(test_who_has_one_answer_may_wait_for_the_others) {
  constexpr uint32_t kDevices = 8;
  for (uint32_t turn = 0; turn < 20; ++turn) {
    Replies replies;
    std::mutex mutex;
    std::condition_variable come;
    uint32_t met = 0;
    uint32_t number = 0;
    for (uint32_t device = 0; device < kDevices; ++device) {
      const uint32_t mine = replies.ask_replicated({MakeToken(1, 0, 0, turn)}, kDevices, [&](const Answer &) {
        return [&](const std::string &) {
          std::unique_lock lock(mutex);
          ++met;
          come.notify_all();
          come.wait(lock, [&] { return met == kDevices; });
        };
      });
      number = std::max(number, mine);
    }
    AnswerWith(replies, number, {"x"});
    std::unique_lock lock(mutex);
    come.wait(lock, [&] { return met == kDevices; });
  }
}

// In a region over some axes each group of replicas has its own answer, and its primary one publishes, whenever it
// comes.
TEST(test_replica_groups_have_answers_of_their_own) {
  Replies replies;
  Heard heard;
  const auto ask = [&](uint32_t group, uint32_t replica, const std::string &name) {
    return replies.ask_replicated({MakeToken(1, 0, 0, 0), true, {group, replica}}, 2, heard.waiter(name));
  };
  CHECK_EQ(ask(0, 1, "a1"), 0u);
  const uint32_t b = ask(1, 0, "b0");
  const uint32_t a = ask(0, 0, "a0");
  CHECK(a != 0 && b != 0 && a != b);
  AnswerWith(replies, b, {"x"});
  CHECK_SEEN(heard.take(), {"b0:x"});
  AnswerWith(replies, a, {"y"});
  CHECK_SEEN(heard.take(), {"a1:y", "a0:y"});
  CHECK_EQ(ask(1, 1, "b1"), 0u);
  CHECK_SEEN(heard.take(), {"b1:x"});
  CHECK(replies.open().empty());

  CHECK_EQ(ask(0, 1, "a1"), 0u);
  replies.end_program(1, 0);
  CHECK_EQ(ask(0, 0, "a0"), 0u);
  CHECK_EQ(heard.take().size(), 2u);
  CHECK(replies.open().empty());
}

} // namespace
} // namespace effects::replicated_replies_test
