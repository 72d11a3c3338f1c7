// Who waits for what a callback returns: from a number in a record to the devices that wait for its answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record.h"

namespace effects {

struct Span {
  const void *data;
  size_t size;
};

// What a callback returned: the bytes of its results, or why there are none.
struct Answer {
  std::vector<Span> results;
  std::string error; // empty: none
};

class Replies {
public:
  // Called once, by whoever answers, with no lock held. It may run the rest of the waiting program.
  using Waiter = std::function<void(const Answer &)>;

  // Runs something in another thread.
  using Elsewhere = std::function<void(std::function<void()>)>;

  explicit Replies(Elsewhere elsewhere = [](const std::function<void()> &job) { job(); })
      : elsewhere_(std::move(elsewhere)) {}

  // Registers somebody who waits. The number goes into the record; 0: its program has been ended, and it was told so.
  uint32_t ask(Waiter waiter, const Token &token = {kPlainThread << kDomainBits, 0, 0, 0}) {
    std::unique_lock lock(mutex_);
    if (ended_.count({ThreadOf(token), token.epoch}) != 0) {
      lock.unlock();
      waiter({{}, kEnded});
      return 0;
    }
    const uint32_t number = next_number();
    asked_[number].token = token;
    asked_[number].waiters.push_back(std::move(waiter));
    return number;
  }

  // As ask(), for a record that `copies` devices publish alike: they all get the one answer. Returns the number for the
  // first to come, and 0 for the others, which publish nothing. One that comes late is answered here and now.
  uint32_t ask_replicated(const Token &token, uint32_t copies, Waiter waiter) {
    std::unique_lock lock(mutex_);
    auto [it, first] = replicated_.try_emplace(Key(token), 0);
    if (first) it->second = next_number();
    const uint32_t number = it->second;
    Asked &asked = asked_[number];
    asked.token = token;
    asked.copies = copies;
    ++asked.came;
    if (!asked.answered) {
      asked.waiters.push_back(std::move(waiter));
      return first ? number : 0;
    }
    const Owned owned = asked.came == copies ? std::move(asked.answer) : asked.answer;
    if (asked.came == copies) forget(it->second);
    lock.unlock();
    waiter(owned.view());
    return 0;
  }

  // Gives everybody who waits under this number the answer. Each may go on with its device's part of the program up to
  // where that waits for the others' parts, so all but the last do so elsewhere.
  void answer(uint32_t number, const Answer &answer) {
    std::vector<Waiter> waiters;
    {
      std::lock_guard lock(mutex_);
      auto it = asked_.find(number);
      if (it == asked_.end() || it->second.answered) return;
      waiters = std::move(it->second.waiters);
      if (it->second.came >= it->second.copies) {
        forget(number);
      } else {
        it->second.answered = true;
        it->second.answer = Owned(answer);
      }
    }
    if (waiters.size() > 1) {
      const auto owned = std::make_shared<const Owned>(answer);
      for (size_t i = 0; i + 1 < waiters.size(); ++i)
        elsewhere_([waiter = std::move(waiters[i]), owned] { waiter(owned->view()); });
    }
    if (!waiters.empty()) waiters.back()(answer);
  }

  void fail(uint32_t number, std::string why) { answer(number, {{}, std::move(why)}); }

  // This program cannot go on: all its devices that wait are told, and those that come to ask.
  void end_program(uint32_t thread, uint32_t epoch) {
    std::vector<Waiter> waiters;
    {
      std::lock_guard lock(mutex_);
      ended_.insert({thread, epoch});
      for (auto it = asked_.begin(); it != asked_.end();) {
        Asked &asked = it->second;
        if (asked.copies != 0 || ThreadOf(asked.token) != thread || asked.token.epoch != epoch) {
          ++it;
          continue;
        }
        std::move(asked.waiters.begin(), asked.waiters.end(), std::back_inserter(waiters));
        it = asked_.erase(it);
      }
    }
    for (const Waiter &waiter : waiters) waiter({{}, kEnded});
  }

  // This program has failed, and that is known: not all of its devices may come for what several ask for alike.
  void forget_replicated(uint32_t thread, uint32_t epoch) {
    std::vector<Waiter> waiters;
    {
      std::lock_guard lock(mutex_);
      ended_.erase({thread, epoch});
      for (auto it = replicated_.begin(); it != replicated_.end();) {
        const auto asked = asked_.find(it->second);
        const Token &token = asked->second.token;
        if (ThreadOf(token) != thread || token.epoch != epoch) {
          ++it;
          continue;
        }
        std::move(asked->second.waiters.begin(), asked->second.waiters.end(), std::back_inserter(waiters));
        asked_.erase(asked);
        it = replicated_.erase(it);
      }
    }
    for (const Waiter &waiter : waiters) waiter({{}, kEnded});
  }

  // Numbers that nobody has answered yet.
  std::vector<uint32_t> open() {
    std::lock_guard lock(mutex_);
    std::vector<uint32_t> numbers;
    for (const auto &[number, asked] : asked_)
      if (!asked.answered) numbers.push_back(number);
    return numbers;
  }

private:
  // An answer that outlives the call which gave it.
  struct Owned {
    Owned() = default;
    explicit Owned(const Answer &answer) : error(answer.error) {
      for (const Span &span : answer.results) results.emplace_back(static_cast<const char *>(span.data), span.size);
    }
    Answer view() const {
      Answer answer{{}, error};
      for (const std::string &bytes : results) answer.results.push_back({bytes.data(), bytes.size()});
      return answer;
    }
    std::vector<std::string> results;
    std::string error;
  };
  struct Asked {
    std::vector<Waiter> waiters;
    uint32_t copies = 0; // how many will come; 0: only the one
    uint32_t came = 0;
    bool answered = false;
    Token token{};
    Owned answer;
  };
  using TokenKey = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>;
  static TokenKey Key(const Token &token) { return {token.stream, token.epoch, token.phase, token.index}; }

  static constexpr char kEnded[] = "The program has failed on another device.";

  // All with `mutex_` held.
  uint32_t next_number() {
    do ++last_;
    while (last_ == 0 || asked_.count(last_) != 0);
    return last_;
  }
  void forget(uint32_t number) {
    auto it = asked_.find(number);
    if (it->second.copies != 0) replicated_.erase(Key(it->second.token));
    asked_.erase(it);
  }

  const Elsewhere elsewhere_;
  std::mutex mutex_;
  uint32_t last_ = 0;
  std::unordered_map<uint32_t, Asked> asked_;     // by number
  std::map<TokenKey, uint32_t> replicated_;       // number of what several devices ask for
  std::set<std::pair<uint32_t, uint32_t>> ended_; // thread and epoch of programs that cannot go on, until that is known
};

} // namespace effects
