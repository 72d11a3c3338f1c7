// Filter: which of the effects of a line are shown, and how many have come.
#include "dispatch/native/producer/filter.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace effects::filter_test {
namespace {

using check::Random;

constexpr double kForever = 1e9; // seconds, beyond any test

// The numbers of what a device is shown, of so many that it comes to.
std::vector<std::string> Shown(Filter &filter, uint64_t count, int32_t device = 0) {
  std::vector<std::string> shown;
  for (uint64_t i = 0; i < count; ++i)
    if (filter.shows(device)) shown.push_back(std::to_string(i));
  return shown;
}

void CheckCounts(Filter &filter, uint64_t come, uint64_t shown) {
  const Filter::Counts counts = filter.counts();
  CHECK_EQ(counts.come, come);
  CHECK_EQ(counts.shown, shown);
}

// A new filter shows all, and counts it.
TEST(test_new_filter_shows_all) {
  Filter filter;
  CheckCounts(filter, 0, 0);
  CHECK_SEEN(Shown(filter, 4), {"0", "1", "2", "3"});
  CheckCounts(filter, 4, 4);
}

// The first is shown, and each `every`-th.
TEST(test_every_shows_the_first_and_each_nth) {
  Filter filter;
  filter.every = 3;
  CHECK_SEEN(Shown(filter, 8), {"0", "3", "6"});
  CHECK_SEEN(Shown(filter, 4), {"1"}); // the ninth of all
  CheckCounts(filter, 12, 4);
}

// `first` counts what was shown, and not what has come.
TEST(test_first_counts_what_was_shown) {
  Filter filter;
  filter.every = 2;
  filter.first = 3;
  CHECK_SEEN(Shown(filter, 20), {"0", "2", "4"});
  CheckCounts(filter, 20, 3);
  filter.first = 4; // one more
  CHECK_SEEN(Shown(filter, 20), {"0"});
  filter.first = Filter::kAll;
  CHECK_SEEN(Shown(filter, 3), {"0", "2"});
  CheckCounts(filter, 43, 6);
}

// What is off counts what comes, and shows nothing; a level that is not enough does the same.
TEST(test_off_counts_and_shows_nothing) {
  Filter filter;
  filter.every = 2;
  filter.on = false;
  CHECK_SEEN(Shown(filter, 3), {});
  filter.level_allows = false;
  CHECK_SEEN(Shown(filter, 3), {});
  filter.on = true;
  CHECK_SEEN(Shown(filter, 3), {});
  CheckCounts(filter, 9, 0);
  filter.level_allows = true;
  CHECK_SEEN(Shown(filter, 4), {"1", "3"}); // numbers 10 and 12: the count has gone on
}

// Devices count for themselves, however many there are, and the counts are of all together.
TEST(test_devices_count_for_themselves) {
  Filter filter;
  filter.every = 2;
  filter.first = 2;
  for (int32_t device = 0; device < 20; ++device) CHECK_SEEN(Shown(filter, 6, device), {"0", "2"});
  CheckCounts(filter, 120, 40);
}

// The effects of a program that all of its devices have, as one device comes to them.
class Program {
public:
  Program(Filter &filter, uint32_t epoch) : filter_(filter), epoch_(epoch) {}
  // A device comes to its next one, of which the numbers of those that are shown are kept.
  void come(size_t device) {
    const uint32_t number = come_[device]++;
    const Decision decision = filter_.shows_same({0x100, epoch_, 0, 7 * number});
    if (decision == Decision::kShow) shown.push_back(number);
    decided += decision != Decision::kElsewhere;
  }
  uint32_t has_come(size_t device) const { return come_[device]; }

  std::vector<uint32_t> shown;
  uint64_t decided = 0;

private:
  Filter &filter_;
  const uint32_t epoch_;
  std::vector<uint32_t> come_ = std::vector<uint32_t>(12);
};

// Of an effect that all devices have, the first that comes to it decides, however often the others have been there.
TEST(test_first_device_decides_for_all) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    check::seed = seed;
    Random random(seed);
    Filter filter;
    filter.every = 3;
    uint32_t total = 0;
    for (uint32_t epoch = 0; epoch < 4; ++epoch) {
      const auto devices = 1 + random.below(12);
      Program program(filter, epoch);
      for (uint64_t left = 20 * devices; left > 0;) {
        const auto device = static_cast<size_t>(random.below(devices));
        if (program.has_come(device) == 20) continue;
        program.come(device);
        --left;
      }
      CHECK_EQ(program.decided, uint64_t{20});
      std::vector<uint32_t> expected;
      for (uint32_t i = 0; i < 20; ++i)
        if ((total + i) % 3 == 0) expected.push_back(i);
      CHECK(program.shown == expected);
      total += 20;
    }
    CheckCounts(filter, 80, 27);
  }
}

// Counts go on when a filter is set, whichever devices the programs before it have run on.
TEST(test_counts_go_on_when_a_filter_is_set) {
  Filter filter;
  Program first(filter, 0), second(filter, 1), third(filter, 2);
  for (size_t device = 0; device < 3; ++device)
    for (int i = 0; i < 10; ++i) first.come(device);
  CHECK_EQ(first.shown.size(), size_t{10});
  for (size_t device = 3; device < 5; ++device)
    for (int i = 0; i < 10; ++i) second.come(device);
  CheckCounts(filter, 20, 20);
  filter.every = 4;
  for (size_t device = 0; device < 3; ++device)
    for (int i = 0; i < 10; ++i) third.come(device);
  CHECK((third.shown == std::vector<uint32_t>{0, 4, 8})); // the numbers 20, 24 and 28
  CheckCounts(filter, 30, 23);
}

// A device's own effects in a region are counted by themselves; all that is outside of regions has one count.
TEST(test_effects_outside_of_regions_have_one_count) {
  Filter filter;
  filter.every = 3;
  CHECK_SEEN(Shown(filter, 2, 0), {"0"});
  Program program(filter, 0);
  for (int i = 0; i < 2; ++i) program.come(0);
  CHECK((program.shown == std::vector<uint32_t>{0}));
  CHECK_SEEN(Shown(filter, 2, kAllDevices), {"1"}); // the fourth
  CHECK_SEEN(Shown(filter, 2, 0), {"1"});
}

// Of unordered effects each device has as many, and the n-th of each is shown or not, also if the filter changes
// between two devices, or a device is far ahead.
TEST(test_devices_agree_about_unordered_effects) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    check::seed = seed;
    Random random(seed);
    Filter filter;
    uint64_t come = 0, shown = 0;
    for (uint32_t epoch = 0; epoch < 4; ++epoch) {
      const auto devices = static_cast<uint32_t>(1 + random.below(12));
      std::vector<std::vector<bool>> seen(devices);
      for (uint64_t left = 20 * devices; left > 0;) {
        const auto device = static_cast<size_t>(random.below(devices));
        if (seen[device].size() == 20) continue;
        if (random.one_in(8)) filter.every = 1 + random.below(3);
        if (random.one_in(8)) filter.on = random.one_in(2);
        seen[device].push_back(filter.shows_copy(static_cast<int32_t>(device), {0x100, epoch, 0, 0}, devices));
        --left;
      }
      for (const auto &each : seen) CHECK(each == seen[0]);
      come += 20;
      for (const bool one : seen[0]) shown += one;
    }
    CheckCounts(filter, come, shown);
  }
}

// `first` shows so many, whichever threads come at once.
TEST(test_first_shows_as_many_from_several_threads) {
  Filter filter;
  filter.every = 2;
  filter.first = 100;
  std::atomic<uint64_t> shown{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) shown += filter.shows(kAllDevices);
    });
  for (std::thread &thread : threads) thread.join();
  CHECK_EQ(shown.load(), uint64_t{100});
  CheckCounts(filter, 20000, 100);
}

// Within `min_seconds` of one that was shown no other is, on the device that it was shown on.
TEST(test_min_seconds_shows_one_of_each_device) {
  Filter filter;
  filter.min_seconds = kForever;
  CHECK_SEEN(Shown(filter, 100, 0), {"0"});
  CHECK_SEEN(Shown(filter, 100, 9), {"0"});
  CheckCounts(filter, 200, 2);
  filter.min_seconds = 0;
  CHECK_SEEN(Shown(filter, 2, 0), {"0", "1"});
}

// `every` comes ahead of the time: what it leaves out is no reason to wait. `first` counts what both show.
TEST(test_every_then_time_then_first) {
  Filter filter;
  filter.every = 3;
  filter.min_seconds = kForever;
  filter.on = false;
  CHECK_SEEN(Shown(filter, 1), {});
  filter.on = true;
  filter.first = 2;
  CHECK_SEEN(Shown(filter, 8), {"2"});                            // number 3
  filter.min_seconds = std::numeric_limits<double>::denorm_min(); // passes between two
  CHECK_EQ(Shown(filter, 3000).size(), size_t{1});
  CheckCounts(filter, 3009, 2);
}

// The same from several threads at once, and by time.
TEST(test_devices_decide_once_from_several_threads) {
  constexpr uint32_t kSteps = 20000, kDevices = 4;
  Filter filter;
  filter.min_seconds = 20e-6;
  std::atomic<uint64_t> decided{0}, shown{0};
  std::vector<std::thread> threads;
  for (uint32_t device = 0; device < kDevices; ++device)
    threads.emplace_back([&] {
      for (uint32_t i = 0; i < kSteps; ++i) {
        const Decision decision = filter.shows_same({0x100, 0, 0, i});
        decided += decision != Decision::kElsewhere;
        shown += decision == Decision::kShow;
      }
    });
  for (std::thread &thread : threads) thread.join();
  CHECK(shown > 0 && decided <= kSteps);
  CheckCounts(filter, decided, shown);
}

// The host changes a filter while devices come by, and no count is lost.
TEST(test_switches_while_devices_come_by) {
  constexpr uint64_t kSteps = 20000;
  constexpr int32_t kDevices = 10; // more than have a counter at hand
  Filter filter;
  std::atomic<uint64_t> shown{0};
  std::atomic<int> running{kDevices};
  std::vector<std::thread> threads;
  for (int32_t device = 0; device < kDevices; ++device)
    threads.emplace_back([&, device] {
      uint64_t mine = 0;
      for (uint64_t i = 0; i < kSteps / 10; ++i) mine += filter.shows(device);
      shown += mine;
      --running;
    });
  Random random(1);
  while (running != 0) {
    filter.on = random.one_in(2);
    filter.every = 1 + random.below(4);
    filter.level_allows = !random.one_in(4);
    filter.first = random.one_in(2) ? Filter::kAll : random.below(100);
    filter.min_seconds = random.one_in(2) ? 0 : 1e-6;
    const Filter::Counts counts = filter.counts();
    CHECK(counts.shown <= counts.come && counts.come <= kSteps);
  }
  for (std::thread &thread : threads) thread.join();
  CheckCounts(filter, kSteps, shown);
}

} // namespace
} // namespace effects::filter_test
