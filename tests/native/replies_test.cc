// Replies: each waiter gets one answer; none is forgotten, and none is answered twice.
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

namespace effects::replies_test {
namespace {

using check::MakeToken;

// Each waiter has a number, which is not 0, and gets the answer to it, in whatever order the answers come.
TEST(test_each_number_has_its_answer) {
  Replies replies;
  Heard heard;
  const uint32_t a = replies.ask(heard.waiter("a"));
  const uint32_t b = replies.ask(heard.waiter("b"));
  const uint32_t c = replies.ask(heard.waiter("c"));
  CHECK((std::set<uint32_t>{0, a, b, c}.size() == 4));
  CHECK_SEEN(heard.take(), {});
  AnswerWith(replies, b, {"1", "23"});
  CHECK_SEEN(heard.take(), {"b:1,23"});
  AnswerWith(replies, a, {});
  AnswerWith(replies, c, {""});
  CHECK_SEEN(heard.take(), {"a:", "c:"});
}

// The first answer counts; a further one, a failure behind it, and an answer to a number that was never given reach no
// waiter.
TEST(test_each_number_is_answered_once) {
  Replies replies;
  Heard heard;
  const uint32_t number = replies.ask(heard.waiter("a"));
  AnswerWith(replies, number + 1, {"x"});
  AnswerWith(replies, 0, {"x"});
  CHECK_SEEN(heard.take(), {});
  AnswerWith(replies, number, {"x"});
  AnswerWith(replies, number, {"y"});
  replies.fail(number, "late");
  CHECK_SEEN(heard.take(), {"a:x"});
}

// A waiter that is failed gets the reason and no results, and gets it once.
TEST(test_failure_is_an_answer) {
  Replies replies;
  Heard heard;
  const uint32_t number = replies.ask(heard.waiter("a"));
  replies.fail(number, "why");
  replies.fail(number, "again");
  AnswerWith(replies, number, {"x"});
  CHECK_SEEN(heard.take(), {"a!why"});
}

// open() has the numbers that are asked and not answered.
TEST(test_open_numbers) {
  Replies replies;
  Heard heard;
  CHECK(Open(replies).empty());
  const uint32_t a = replies.ask(heard.waiter("a"));
  const uint32_t b = replies.ask_replicated({MakeToken(1, 0, 0, 0)}, 2, heard.waiter("b"));
  CHECK((Open(replies) == std::set<uint32_t>{a, b}));
  AnswerWith(replies, b, {"x"});
  CHECK((Open(replies) == std::set<uint32_t>{a})); // the second device will come, but its answer is there
  replies.fail(a, "why");
  CHECK(Open(replies).empty());
}

// Tokens that differ in any of their numbers are asked for apart.
TEST(test_tokens_are_asked_for_apart) {
  Replies replies;
  Heard heard;
  const Token tokens[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 2, 1, 1}, {1, 1, 2, 1}, {1, 1, 1, 2}};
  std::set<uint32_t> numbers;
  for (const Token &token : tokens) numbers.insert(replies.ask_replicated({token}, 2, heard.waiter("a")));
  CHECK_EQ(numbers.size(), std::size(tokens));
  CHECK(numbers.count(0) == 0);
  CHECK(Open(replies) == numbers);
}

// A waiter is called with no lock held: it may ask, answer and fail, and be late for itself.
TEST(test_waiter_may_ask_again) {
  Replies replies;
  Heard heard;
  const Token token = MakeToken(1, 0, 0, 0);
  uint32_t inner = 0;
  const uint32_t number = replies.ask_replicated({token}, 2, [&](const Answer &) {
    CHECK_EQ(replies.ask_replicated({token}, 2, heard.waiter("late")), 0u);
    inner = replies.ask(heard.waiter("inner"));
    replies.fail(replies.ask(heard.waiter("failed")), "why");
    CHECK((Open(replies) == std::set<uint32_t>{inner}));
    return Replies::Continuation();
  });
  AnswerWith(replies, number, {"x"});
  AnswerWith(replies, inner, {"y"});
  CHECK_SEEN(heard.take(), {"late:x", "failed!why", "inner:y"});
}

// What a waiter holds is freed with its answer.
TEST(test_waiter_is_freed_with_its_answer) {
  Replies replies;
  const auto held = std::make_shared<int>(0);
  const Token token = MakeToken(1, 0, 0, 0);
  const uint32_t single = replies.ask([held](const Answer &) { return Replies::Continuation(); });
  const uint32_t first = replies.ask_replicated({token}, 3, [held](const Answer &) { return Replies::Continuation(); });
  replies.ask_replicated({token}, 3, [held](const Answer &) { return Replies::Continuation(); });
  CHECK_EQ(held.use_count(), 4l);
  AnswerWith(replies, single, {});
  CHECK_EQ(held.use_count(), 3l);
  AnswerWith(replies, first, {});
  CHECK_EQ(held.use_count(), 1l);
  replies.ask_replicated({token}, 3, [held](const Answer &) { return Replies::Continuation(); });
  CHECK_EQ(held.use_count(), 1l);
}

// Many devices ask while several threads answer each number, some with a failure: every waiter is called once, all of
// one token hear the same, and nothing is left open.
TEST(test_many_threads_ask_and_answer) {
  constexpr uint32_t kDevices = 3;
  constexpr uint32_t kTokens = 1500;
  constexpr uint32_t kAnswerers = 2;
  Replies replies;
  struct Told {
    std::atomic<int> times{0};
    std::string what; // written by the one who is told
  };
  std::vector<Told> shared(kDevices * kTokens);
  std::vector<Told> single(kDevices * kTokens);
  const auto waiter = [](Told &told) {
    return [&told](const Answer &answer) {
      told.what = answer.error;
      for (const Span &span : answer.results) told.what.append(static_cast<const char *>(span.data), span.size);
      told.times.fetch_add(1);
      return Replies::Continuation();
    };
  };
  std::atomic<uint32_t> asking{kDevices};
  std::vector<std::thread> threads;
  for (uint32_t device = 0; device < kDevices; ++device)
    threads.emplace_back([&, device] {
      for (uint32_t at = 0; at < kTokens; ++at) {
        const uint32_t place = device * kTokens + at;
        replies.ask_replicated({MakeToken(1, 0, at / 10, at % 10)}, kDevices, waiter(shared[place]));
        CHECK(replies.ask(waiter(single[place])) != 0);
      }
      --asking;
    });
  for (uint32_t answerer = 0; answerer < kAnswerers; ++answerer)
    threads.emplace_back([&, answerer] {
      for (bool last = false; !last;) {
        last = asking == 0; // what is open after that stays until it is answered
        for (const uint32_t number : replies.open()) {
          if ((number + answerer) % 3 == 0)
            replies.fail(number, "failed " + std::to_string(number));
          else
            AnswerWith(replies, number, {"answer ", std::to_string(number), " of ", std::to_string(answerer)});
        }
      }
    });
  for (std::thread &thread : threads) thread.join();
  CHECK(replies.open().empty());
  for (uint32_t at = 0; at < kTokens; ++at)
    for (uint32_t device = 0; device < kDevices; ++device) {
      const uint32_t place = device * kTokens + at;
      CHECK_EQ(shared[place].times.load(), 1);
      CHECK_EQ(single[place].times.load(), 1);
      CHECK(!shared[place].what.empty());
      CHECK(shared[place].what == shared[at].what);
    }
}

} // namespace
} // namespace effects::replies_test
