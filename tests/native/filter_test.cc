// Filter: which of the effects of a line are shown, and how many have come.
#include "dispatch/native/producer/filter.h"

#include <algorithm>
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
std::vector<std::string> Shown(Filter &filter, uint64_t count, int32_t device = 0, bool is_same = false) {
  std::vector<std::string> shown;
  for (uint64_t i = 0; i < count; ++i)
    if (filter.shows(device, is_same)) shown.push_back(std::to_string(i));
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

// What the devices of a program have in common counts once: as the one has that has come furthest.
TEST(test_counts_of_what_is_the_same_everywhere) {
  Filter filter;
  filter.every = 4;
  for (int32_t device = 0; device < 3; ++device) Shown(filter, 10, device, /*is_same=*/true);
  CheckCounts(filter, 10, 3);
  Shown(filter, 1, 12, /*is_same=*/true);
  CheckCounts(filter, 10, 3);
}

// The effects of all devices at once have a counter that is none of the devices'.
TEST(test_all_devices_have_a_counter_of_their_own) {
  Filter filter;
  filter.every = 3;
  CHECK_SEEN(Shown(filter, 2, kAllDevices, /*is_same=*/true), {"0"});
  CHECK_SEEN(Shown(filter, 2, 0), {"0"});
  CHECK_SEEN(Shown(filter, 2, kAllDevices, /*is_same=*/true), {"1"});
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

// Devices with the same effects show the same ones, whichever comes first and however far it is ahead, as far as the
// last 32 that were shown: the first to come to one decides whether it is time.
TEST(test_devices_agree_about_time_in_turns) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    check::seed = seed;
    Random random(seed);
    Filter filter;
    filter.every = 1 + random.below(3);
    std::vector<std::vector<std::string>> shown(4);
    std::vector<uint64_t> come(4);
    for (int left = 400; left > 0; --left) {
      // Time passes, or does not.
      filter.min_seconds = random.one_in(8) ? std::numeric_limits<double>::denorm_min() : kForever;
      const auto device = static_cast<int32_t>(random.below(4));
      uint64_t &number = come[static_cast<size_t>(device)];
      uint64_t behind = number;
      for (const uint64_t other : come) behind = std::min(behind, other);
      if (number - behind > 20) continue;
      if (filter.shows(device, /*is_same=*/true)) shown[static_cast<size_t>(device)].push_back(std::to_string(number));
      ++number;
    }
    filter.min_seconds = kForever;
    for (int32_t device = 0; device < 4; ++device) {
      auto &mine = shown[static_cast<size_t>(device)];
      for (uint64_t &number = come[static_cast<size_t>(device)]; number < 401; ++number)
        if (filter.shows(device, /*is_same=*/true)) mine.push_back(std::to_string(number));
    }
    CHECK(!shown[0].empty());
    for (const auto &others : shown) CHECK(others == shown[0]);
  }
}

// The same from several threads at once, which stay within a few steps of each other as devices that meet do.
TEST(test_devices_agree_about_time_from_several_threads) {
  constexpr uint64_t kSteps = 3000, kAhead = 16;
  constexpr int32_t kDevices = 4;
  Filter filter;
  filter.min_seconds = 20e-6;
  std::vector<std::atomic<uint64_t>> come(kDevices);
  std::vector<std::vector<std::string>> shown(kDevices);
  std::vector<std::thread> threads;
  for (int32_t device = 0; device < kDevices; ++device)
    threads.emplace_back([&, device] {
      const auto mine = static_cast<size_t>(device);
      for (uint64_t i = 0; i < kSteps; ++i) {
        for (const auto &other : come)
          while (other + kAhead < i) std::this_thread::yield();
        if (filter.shows(device, /*is_same=*/true)) shown[mine].push_back(std::to_string(i));
        ++come[mine];
      }
    });
  for (std::thread &thread : threads) thread.join();
  CHECK(!shown[0].empty() && shown[0][0] == "0");
  for (const auto &others : shown) CHECK(others == shown[0]);
  CheckCounts(filter, kSteps, shown[0].size());
}

// The host changes a filter while devices come by, and nobody's count is lost.
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
      for (uint64_t i = 0; i < kSteps / 10; ++i) mine += filter.shows(device, /*is_same=*/false);
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
