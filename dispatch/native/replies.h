// Who waits for what a callback returns: from a number in a record to the devices that wait for its answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record.h"
#include "threads.h"

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
  // Called once, by whoever answers, with no lock held, and takes the answer. What it returns, if anything, is called
  // then: it may run the rest of the waiting program.
  using GoOn = std::function<void()>;
  using Waiter = std::function<GoOn(const Answer &)>;

  // Registers somebody who waits. The number goes into the record; 0: its program has been ended, and it was told so.
  uint32_t ask(Waiter waiter, const Token &token = {kPlainThread << kDomainBits, 0, 0, 0}) {
    std::unique_lock lock(mutex_);
    if (ended_.count({ThreadOf(token), token.epoch}) != 0) {
      lock.unlock();
      tell({std::move(waiter)}, {{}, kEnded});
      return 0;
    }
    const uint32_t number = next_number();
    asked_[number].place.token = token;
    asked_[number].waiters.push_back(std::move(waiter));
    return number;
  }

  // As ask(), for a record that `copies` devices publish alike: they all get the one answer. Returns the number for the
  // one that publishes, and 0 for the others. It is the first to come, or in a part of a region that which speaks for
  // it. One that comes late is answered here and now.
  uint32_t ask_replicated(const Place &place, uint32_t copies, Waiter waiter) {
    const Token &token = place.token;
    std::unique_lock lock(mutex_);
    if (place.has_part && ended_.count({ThreadOf(token), token.epoch}) != 0) {
      lock.unlock();
      tell({std::move(waiter)}, {{}, kEnded});
      return 0;
    }
    auto [it, first] = replicated_.try_emplace(KeyOf(place), 0);
    if (first) it->second = next_number();
    const uint32_t number = it->second;
    Asked &asked = asked_[number];
    asked.place = place;
    asked.copies = copies;
    ++asked.came;
    if (!asked.answered) {
      asked.waiters.push_back(std::move(waiter));
      return (place.has_part ? place.speaks() : first) ? number : 0;
    }
    const Owned owned = asked.came == copies ? std::move(asked.answer) : asked.answer;
    if (asked.came == copies) forget(it->second);
    lock.unlock();
    tell({std::move(waiter)}, owned.view());
    return 0;
  }

  // Gives everybody who waits under this number the answer.
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
    tell(waiters, answer);
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
        const Place &place = asked.place;
        const bool is_whole = asked.copies != 0 && !place.has_part;
        if (is_whole || ThreadOf(place.token) != thread || place.token.epoch != epoch) {
          ++it;
          continue;
        }
        if (asked.copies != 0) replicated_.erase(KeyOf(place));
        std::move(asked.waiters.begin(), asked.waiters.end(), std::back_inserter(waiters));
        it = asked_.erase(it);
      }
    }
    tell(waiters, {{}, kEnded});
  }

  // This program has failed, and that is known: not all of its devices may come for what several ask for alike.
  void forget_replicated(uint32_t thread, uint32_t epoch) {
    std::vector<Waiter> waiters;
    {
      std::lock_guard lock(mutex_);
      ended_.erase({thread, epoch});
      for (auto it = replicated_.begin(); it != replicated_.end();) {
        const auto asked = asked_.find(it->second);
        const Token &token = asked->second.place.token;
        if (ThreadOf(token) != thread || token.epoch != epoch) {
          ++it;
          continue;
        }
        std::move(asked->second.waiters.begin(), asked->second.waiters.end(), std::back_inserter(waiters));
        asked_.erase(asked);
        it = replicated_.erase(it);
      }
    }
    tell(waiters, {{}, kEnded});
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
    Place place{};
    Owned answer;
  };
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;
  static Key KeyOf(const Place &place) {
    const Token &token = place.token;
    return {token.stream, token.epoch, token.phase, place.has_part ? place.turn : token.index, place.part};
  }

  // Devices that have one answer may go on to where they wait for each other, so each has a thread to do so.
  void tell(const std::vector<Waiter> &waiters, const Answer &answer) {
    std::vector<GoOn> ways;
    for (const Waiter &waiter : waiters)
      if (GoOn way = waiter(answer)) ways.push_back(std::move(way));
    for (size_t i = 1; i < ways.size(); ++i) threads_.run(std::move(ways[i]));
    if (!ways.empty()) ways[0]();
  }

  static constexpr char kEnded[] = "The program has failed on another device.";

  // All with `mutex_` held.
  uint32_t next_number() {
    do ++last_;
    while (last_ == 0 || asked_.count(last_) != 0);
    return last_;
  }
  void forget(uint32_t number) {
    auto it = asked_.find(number);
    if (it->second.copies != 0) replicated_.erase(KeyOf(it->second.place));
    asked_.erase(it);
  }

  Threads threads_;
  std::mutex mutex_;
  uint32_t last_ = 0;
  std::unordered_map<uint32_t, Asked> asked_;     // by number
  std::map<Key, uint32_t> replicated_;            // number of what several devices ask for
  std::set<std::pair<uint32_t, uint32_t>> ended_; // thread and epoch of programs that cannot go on, until that is known
};

} // namespace effects
