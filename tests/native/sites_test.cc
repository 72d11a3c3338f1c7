// Sites: what is known of a site stays for as long as a record of it may come, and no longer.
#include "dispatch/native/drain/sites.h"

#include <atomic>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace effects::sites_test {
namespace {

using check::Random;

constexpr uint64_t kNoneOpen = std::numeric_limits<uint64_t>::max();

// A plan that is told apart from others by its only piece.
Plan Named(const std::string &name) {
  Plan plan;
  plan.pieces.resize(1);
  plan.pieces[0].literal = name;
  return plan;
}

// What forget() returns, as text.
std::vector<std::string> Forgotten(Sites &sites, uint64_t oldest_open) {
  std::vector<std::string> forgotten;
  for (const uint64_t site : sites.forget(oldest_open)) forgotten.push_back(std::to_string(site));
  return forgotten;
}

// A site that nobody introduced has no holder, no description and no plan, and to ask for it does not introduce it.
TEST(test_unknown_site) {
  Sites sites;
  CHECK_EQ(sites.holders(1), uint64_t{0});
  CHECK(sites.description(1).empty());
  CHECK(sites.plan(1) == nullptr);
  CHECK(!sites.any_dying());
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {});
}

// A site has as many holders as retained and did not release it, and the first description that was not empty.
TEST(test_holders_and_description) {
  Sites sites;
  sites.retain(1);
  CHECK(sites.description(1).empty());
  sites.retain(1, "first");
  sites.retain(1, "second");
  sites.retain(2, "other");
  CHECK_EQ(sites.holders(1), uint64_t{3});
  CHECK_EQ(sites.holders(2), uint64_t{1});
  CHECK(sites.description(1) == "first");
  CHECK(sites.description(2) == "other");
  sites.release(1, 0);
  CHECK_EQ(sites.holders(1), uint64_t{2});
}

// Only the last holder's release lets a site be forgotten, with its description and its plan, and it is told once.
TEST(test_last_release_counts) {
  Sites sites;
  sites.retain(1, "text");
  sites.retain(1);
  sites.set_plan(1, Named("plan"));
  sites.release(1, 0);
  CHECK(!sites.any_dying());
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {});
  sites.release(1, 0);
  CHECK(sites.any_dying());
  CHECK(sites.description(1) == "text"); // until it is forgotten
  CHECK(sites.plan(1) != nullptr);
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {"1"});
  CHECK(!sites.any_dying());
  CHECK(sites.description(1).empty());
  CHECK(sites.plan(1) == nullptr);
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {});
}

// A site stays until every dispatch that there had been when its last holder went has ended; later ones do not matter.
TEST(test_site_outlives_the_dispatches_before_its_release) {
  Sites sites;
  sites.retain(1);
  sites.release(1, /*dispatch=*/5);
  for (uint64_t oldest_open : {1, 4, 5}) CHECK_SEEN(Forgotten(sites, oldest_open), {});
  CHECK(sites.any_dying());
  CHECK_SEEN(Forgotten(sites, 6), {"1"});
}

// Each dying site waits for its own.
TEST(test_dying_sites_are_independent) {
  Sites sites;
  for (uint64_t site = 1; site <= 3; ++site) {
    sites.retain(site);
    sites.release(site, /*dispatch=*/5 - site);
  }
  CHECK_SEEN(Forgotten(sites, 3), {"3"});
  CHECK_SEEN(Forgotten(sites, 5), {"1", "2"});
  CHECK(!sites.any_dying());
}

// A site that is retained again before it is forgotten stays, and its next last release counts anew.
TEST(test_dying_site_may_be_retained_again) {
  Sites sites;
  sites.retain(1, "text");
  sites.set_plan(1, Named("plan"));
  sites.release(1, 2);
  sites.retain(1);
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {});
  CHECK(sites.description(1) == "text");
  CHECK(sites.plan(1) != nullptr);
  sites.release(1, 2);
  sites.retain(1);
  sites.release(1, 7); // it is among the dying already
  CHECK_SEEN(Forgotten(sites, 7), {});
  CHECK_SEEN(Forgotten(sites, 8), {"1"});
  CHECK(!sites.any_dying());
  sites.retain(1);
  CHECK_EQ(sites.holders(1), uint64_t{1});
  CHECK(sites.description(1).empty());
}

// A site that was released as the last and retained again many times is told once, and it dies anew after it was found
// alive.
TEST(test_site_that_dies_often_is_told_once) {
  Sites sites;
  for (uint64_t i = 0; i < 5; ++i) {
    sites.retain(1);
    sites.release(1, i);
  }
  CHECK_SEEN(Forgotten(sites, 4), {});
  sites.retain(1);
  CHECK(sites.any_dying());
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {});
  CHECK(!sites.any_dying());
  sites.release(1, 4);
  CHECK(sites.any_dying());
  CHECK_SEEN(Forgotten(sites, 5), {"1"});
  CHECK(!sites.any_dying());
}

// A release too many changes nothing, before the site is forgotten and after.
TEST(test_release_without_a_holder) {
  Sites sites;
  sites.retain(1);
  sites.release(1, 2);
  sites.release(1, 9);
  CHECK_EQ(sites.holders(1), uint64_t{0});
  CHECK_SEEN(Forgotten(sites, 3), {"1"});
  sites.release(1, 0);
  CHECK(!sites.any_dying());
  sites.set_plan(2, Named("plan")); // a site that nobody has retained yet
  sites.release(2, 0);
  CHECK_EQ(sites.holders(2), uint64_t{0});
  CHECK(!sites.any_dying());
  CHECK(sites.plan(2) != nullptr);
}

// A release of a site that is not known, or forgotten, changes nothing.
TEST(test_release_of_an_unknown_site) {
  Sites sites;
  sites.release(1, 0);
  CHECK(!sites.any_dying());
  CHECK_EQ(sites.holders(1), uint64_t{0});
}

// The plan that was set last counts; who has an older one keeps it whole, also when its site is forgotten.
TEST(test_plan_outlives_its_site_with_whom_it_serves) {
  Sites sites;
  sites.retain(1);
  sites.set_plan(1, Named("old"));
  const auto old = sites.plan(1);
  CHECK(sites.plan(1) == old);
  sites.set_plan(1, Named("new"));
  const auto current = sites.plan(1);
  CHECK(current->pieces.at(0).literal == "new");
  sites.release(1, 0);
  CHECK_SEEN(Forgotten(sites, kNoneOpen), {"1"});
  CHECK(old->pieces.at(0).literal == "old");
  CHECK(current->pieces.at(0).literal == "new");
}

// Threads retain, use and release while another forgets: who holds a site finds it, and at the end every site has been
// forgotten and none is left.
TEST(test_many_threads_hold_and_release) {
  constexpr uint64_t kSites = 5;
  Sites sites;
  std::atomic<int> holding{3};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread)
    threads.emplace_back([&, thread] {
      check::seed = thread;
      Random random(thread);
      for (int i = 0; i < 4000; ++i) {
        const uint64_t site = random.below(kSites);
        const std::string name = std::to_string(site);
        sites.retain(site, name);
        sites.set_plan(site, Named(name));
        CHECK(sites.holders(site) > 0);
        CHECK(sites.description(site) == name);
        CHECK(sites.plan(site)->pieces.at(0).literal == name);
        sites.release(site, 0);
      }
      --holding;
    });
  while (holding > 0)
    for (const uint64_t site : sites.forget(kNoneOpen)) CHECK(site < kSites);
  for (std::thread &thread : threads) thread.join();
  sites.forget(kNoneOpen);
  CHECK(!sites.any_dying());
  for (uint64_t site = 0; site < kSites; ++site) {
    CHECK_EQ(sites.holders(site), uint64_t{0});
    CHECK(sites.plan(site) == nullptr);
  }
}

} // namespace
} // namespace effects::sites_test
