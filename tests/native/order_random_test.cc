// ReleaseOrder against a model: random programs, delivered at random.
#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "order_play.h"

namespace effects::order_random_test {
namespace {

using check::MakeToken;
using check::Random;

// Random programs, delivered at random: the model against which ReleaseOrder is held.
//
// A delivery is legal if a record comes at the latest in the scan after the one in which its program's close came, or
// its failure was told: it had been published by then, perhaps into a ring that the scan had passed.
class Model {
public:
  explicit Model(uint64_t seed) : random_(seed) {}

  void run() {
    make_programs();
    for (;;) {
      std::vector<size_t> open; // programs with something to do
      for (size_t i = 0; i < programs_.size(); ++i)
        if (programs_[i].opened && !programs_[i].done()) open.push_back(i);
      const bool all_opened = to_open_.empty();
      if (open.empty() && all_opened && plain_dispatches_.size() == plain_total_ && plain_waiting_.empty()) break;
      const uint64_t choice = random_.below(10);
      if (choice == 0 && !all_opened) {
        open_next();
      } else if (choice == 1 && plain_dispatches_.size() < plain_total_) {
        const auto epoch = static_cast<uint32_t>(plain_dispatches_.size());
        plain_waiting_.push_back(epoch);
        play_.open(kPlainThread, epoch);
        plain_dispatches_.push_back(play_.dispatch);
      } else if (choice == 2 && !plain_waiting_.empty()) {
        deliver_plain();
      } else if (choice == 3) {
        boundary();
      } else if (!open.empty()) {
        act(programs_[open[random_.below(open.size())]]);
      }
    }
    for (int i = 0; i < 4 || play_.advance(); ++i) boundary();
    check();
  }

private:
  struct Effect {
    Kind kind;
    uint32_t domain;
    uint32_t index;
    bool dropped;
  };
  struct Program {
    uint32_t thread;
    uint32_t epoch;
    uint64_t dispatch = 0;
    std::vector<Effect> effects; // not delivered yet
    std::vector<std::pair<uint32_t, uint32_t>> finals;
    std::map<uint32_t, std::vector<uint32_t>> expected; // by domain: the indices that must leave, in order
    size_t unordered = 0;
    bool fails;
    bool opened = false;
    bool ended = false; // its close was delivered, or its failure told
    uint64_t ended_scan = 0;
    bool done() const { return ended && effects.empty(); }
  };

  void make_programs() {
    const uint32_t threads = 1 + static_cast<uint32_t>(random_.below(3));
    std::vector<std::vector<size_t>> by_thread(threads);
    for (uint32_t thread = 0; thread < threads; ++thread) {
      const uint32_t epochs = static_cast<uint32_t>(1 + random_.below(4));
      for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        Program program{};
        program.thread = thread;
        program.epoch = epoch;
        program.fails = random_.one_in(6);
        const uint32_t domains = static_cast<uint32_t>(1 + random_.below(3));
        for (uint32_t domain = 0; domain < domains; ++domain) {
          const uint32_t count = static_cast<uint32_t>(random_.below(6));
          program.finals.emplace_back(domain, count);
          for (uint32_t index = 0; index < count; ++index) {
            if (program.fails && random_.one_in(3)) continue; // the program did not come so far
            const bool dropped = random_.one_in(8);
            program.effects.push_back({Kind::kOrdered, domain, index, dropped});
            if (!dropped) program.expected[domain].push_back(index);
            // A second device's copy, with the same fate.
            if (random_.one_in(6)) program.effects.push_back(program.effects.back());
          }
        }
        program.unordered = random_.below(4);
        for (size_t i = 0; i < program.unordered; ++i) program.effects.push_back({Kind::kUnordered, 0, 0, false});
        by_thread[thread].push_back(programs_.size());
        programs_.push_back(std::move(program));
      }
    }
    // Dispatches of different threads interleave.
    std::vector<size_t> at(threads);
    for (size_t left = programs_.size(); left > 0;) {
      const size_t thread = random_.below(threads);
      if (at[thread] == by_thread[thread].size()) continue;
      to_open_.push_back(by_thread[thread][at[thread]++]);
      --left;
    }
    std::reverse(to_open_.begin(), to_open_.end());
    plain_total_ = random_.below(5);
  }

  void open_next() {
    Program &program = programs_[to_open_.back()];
    to_open_.pop_back();
    play_.open(program.thread, program.epoch);
    program.opened = true;
    program.dispatch = play_.dispatch;
  }

  void act(Program &program) {
    // The close may overtake records in other rings, but seldom.
    if (!program.ended && (program.effects.empty() || random_.one_in(20))) {
      if (program.fails)
        play_.order.fail(program.thread, program.epoch);
      else
        play_.close(program.thread, program.epoch, program.finals);
      program.ended = true;
      program.ended_scan = scans_;
      return;
    }
    if (program.effects.empty()) return;
    const size_t at = random_.below(program.effects.size());
    deliver(program, at);
  }

  void deliver(Program &program, size_t at) {
    const Effect effect = program.effects[at];
    program.effects.erase(program.effects.begin() + static_cast<std::ptrdiff_t>(at));
    if (effect.dropped)
      play_.drop(program.thread, program.epoch, effect.index, 1, effect.domain);
    else if (effect.kind == Kind::kUnordered)
      play_.unordered(program.thread, program.epoch);
    else
      play_.record(program.thread, program.epoch, effect.index, effect.domain);
  }

  void deliver_plain() {
    const size_t at = random_.below(plain_waiting_.size());
    const uint32_t epoch = plain_waiting_[at];
    plain_waiting_.erase(plain_waiting_.begin() + static_cast<std::ptrdiff_t>(at));
    play_.record(kPlainThread, epoch, 0);
    play_.close(kPlainThread, epoch, {{0, 1}});
  }

  // The end of a scan. What a program published before it ended must have been seen by the end of the next scan.
  void boundary() {
    for (Program &program : programs_)
      if (program.ended && scans_ > program.ended_scan)
        while (!program.effects.empty()) deliver(program, random_.below(program.effects.size()));
    play_.advance();
    ++scans_;
  }

  void check() {
    CheckAllEnded(play_);
    std::map<uint32_t, uint32_t> epoch_of; // by thread: the epoch whose turn it is
    std::map<std::pair<uint32_t, uint32_t>, std::map<uint32_t, std::vector<uint32_t>>> left;
    std::map<std::pair<uint32_t, uint32_t>, size_t> unordered;
    std::set<std::pair<uint32_t, uint32_t>> ended;
    uint32_t plain = 0, plain_ended = 0;
    const auto ended_before = [&](uint64_t dispatch) { // how many plain ones were opened before it
      return std::lower_bound(plain_dispatches_.begin(), plain_dispatches_.end(), dispatch) - plain_dispatches_.begin();
    };
    for (const std::string &one : play_.seen) {
      unsigned thread, epoch, domain, index;
      if (std::sscanf(one.c_str(), "end %u.%u", &thread, &epoch) == 2) {
        CHECK_EQ(epoch_of[thread], epoch);
        ++epoch_of[thread];
        ended.emplace(thread, epoch);
      } else if (std::sscanf(one.c_str(), "end plain.%u", &epoch) == 1) {
        CHECK_EQ(epoch, plain_ended);
        ++plain_ended;
      } else if (std::sscanf(one.c_str(), "plain.%u.0.0", &epoch) == 1) {
        CHECK_EQ(epoch, plain);
        ++plain;
        for (const Program &program : programs_)
          if (program.dispatch < plain_dispatches_[epoch]) CHECK(ended.count({program.thread, program.epoch}) == 1);
      } else if (std::sscanf(one.c_str(), "u%u.%u.%u.%u", &thread, &epoch, &domain, &index) == 4) {
        CHECK(ended.count({thread, epoch}) == 0);
        ++unordered[{thread, epoch}];
      } else {
        CHECK_EQ(std::sscanf(one.c_str(), "%u.%u.%u.%u", &thread, &epoch, &domain, &index), 4);
        CHECK_EQ(epoch_of[thread], epoch);
        for (const Program &program : programs_)
          if (program.thread == thread && program.epoch == epoch) CHECK(plain_ended >= ended_before(program.dispatch));
        left[{thread, epoch}][domain].push_back(index);
      }
    }
    CHECK_EQ(plain, plain_total_);
    CHECK_EQ(plain_ended, plain_total_);
    for (const Program &program : programs_) {
      const std::pair<uint32_t, uint32_t> key{program.thread, program.epoch};
      CHECK(ended.count(key) == 1);
      CHECK(left[key] == program.expected);
      CHECK_EQ(unordered[key], program.unordered);
    }
  }

  Random random_;
  Play play_;
  std::vector<Program> programs_;
  std::vector<size_t> to_open_; // the next one last
  uint64_t scans_ = 0;
  uint64_t plain_total_ = 0;
  std::vector<uint64_t> plain_dispatches_; // of those that are open, or were
  std::vector<uint32_t> plain_waiting_;    // published, not delivered
};

// Every thread's records leave by epoch and index, none is lost or doubled, and every epoch ends, for any legal
// delivery.
TEST(test_random_deliveries_leave_in_program_order) {
  for (uint64_t seed = 1; seed <= check::Times(1000); ++seed) {
    check::seed = seed;
    Model(seed).run();
  }
}

} // namespace
} // namespace effects::order_random_test
