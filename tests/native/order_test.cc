// ReleaseOrder: whatever order records arrive in, they leave in program order, and every epoch ends.
#include <string>
#include <vector>

#include "order_play.h"

namespace effects::order_test {
namespace {

// Records that come in order leave at once, and the epoch ends after its close.
TEST(test_records_in_order_leave_at_once) {
  Play play;
  play.open(1, 0);
  for (uint32_t i = 0; i < 3; ++i) {
    play.record(1, 0, i);
    CHECK_SEEN(play.take(), {"1.0.0." + std::to_string(i)});
  }
  play.close(1, 0, {{0, 3}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// A record that comes too early is parked until those before it have left.
TEST(test_early_record_is_parked) {
  Play play;
  play.open(1, 0);
  play.record(1, 0, 2);
  play.record(1, 0, 1);
  play.advance();
  CHECK(play.order.parked_bytes() > 0);
  CHECK_SEEN(play.take(), {});
  play.record(1, 0, 0);
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "1.0.0.2"});
  CHECK_EQ(play.order.parked_bytes(), size_t{0});
}

// Threads do not wait for each other.
TEST(test_threads_are_independent) {
  Play play;
  play.open(1, 0);
  play.open(2, 0);
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0"});
  play.record(1, 0, 0);
  CHECK_SEEN(play.take(), {"1.0.0.0"});
}

// After a close, one scan more of all rings is asked for before the epoch ends: an unordered record may be in a ring
// that the scan had already passed.
TEST(test_close_waits_for_one_more_scan) {
  Play play;
  play.open(1, 0);
  play.close(1, 0, {{0, 0}});
  CHECK(play.advance());
  CHECK_SEEN(play.take(), {});
  play.unordered(1, 0, 9);
  CHECK_SEEN(play.take(), {"u1.0.0.9"});
  play.advance();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// An unordered record leaves when it comes, in whatever epoch.
TEST(test_unordered_record_leaves_on_arrival) {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  play.record(1, 1, 0);
  play.unordered(1, 1, 3);
  play.unordered(1, 0, 4);
  CHECK_SEEN(play.take(), {"u1.1.0.3", "u1.0.0.4"});
}

// A failed program's records that came leave in order, over the gaps, and the next program goes on.
TEST(test_failed_epoch_releases_what_came) {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  play.record(1, 0, 4);
  play.record(1, 0, 0);
  play.record(1, 0, 2);
  play.record(1, 1, 0);
  play.close(1, 1, {{0, 1}});
  play.advance();
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.2", "1.0.0.4", "end 1.0", "1.1.0.0", "end 1.1"});
  CheckAllEnded(play);
}

// A program may fail after one of its devices has closed it: what the others would have published is not waited for.
TEST(test_epoch_may_fail_after_its_close) {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 3}});
  play.advance_to_the_end();
  play.order.fail(1, 0);
  play.record(1, 0, 2);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.2", "end 1.0"});
  play.order.fail(1, 1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.1"});
  CheckAllEnded(play);
}

// To fail twice, or after the end, changes nothing.
TEST(test_failure_is_told_once) {
  Play play;
  play.open(1, 0);
  play.order.fail(1, 0);
  play.order.fail(1, 0);
  play.advance_to_the_end();
  play.order.fail(1, 0);
  play.order.fail(8, 3);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// A second device's copy of a record is dropped, whether the first has left, is parked or belongs to an ended epoch; so
// is its close.
TEST(test_second_devices_copies_are_dropped) {
  Play play;
  play.open(1, 0);
  play.record(1, 0, 0);
  play.record(1, 0, 0);
  play.record(1, 0, 2);
  play.record(1, 0, 2);
  play.record(1, 0, 1);
  play.record(1, 0, 1);
  play.close(1, 0, {{0, 3}});
  play.close(1, 0, {{0, 3}});
  play.record(1, 0, 2);
  play.advance_to_the_end();
  play.record(1, 0, 2);
  play.close(1, 0, {{0, 3}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "1.0.0.2", "end 1.0"});
  CheckAllEnded(play);
}

// releasable() says of a record whether it would leave at once, and claims all that is left of a failed program, which
// would be lost if it were still in a ring when its epoch ends.
TEST(test_releasable_foretells_accept) {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  CHECK(play.order.releasable(Header(1, 0, 0)));
  CHECK(!play.order.releasable(Header(1, 0, 1)));
  CHECK(!play.order.releasable(Header(1, 1, 0)));
  play.order.fail(1, 1);
  CHECK(play.order.releasable(Header(1, 1, 5)));
  CHECK(!play.order.releasable(Header(1, 0, 1)));
}

// accept() says of a record whose epoch has failed and ended, or never was, that nobody will ever want it, and of every
// other that somebody does: one that leaves, is parked, is a copy, or comes before a failed epoch has ended.
TEST(test_accept_says_whether_a_record_is_wanted) {
  Play play;
  CHECK(!play.record_of(1, 0, 0, kCallback, 0, /*reply=*/1));
  play.open(1, 0);
  CHECK(play.record_of(1, 0, 0, kCallback, 0, 2));
  CHECK(play.record_of(1, 0, 2, kCallback, 0, 3));
  CHECK(play.record(1, 0, 0));
  CHECK(play.unordered(1, 0));
  play.order.fail(1, 0);
  CHECK(play.record_of(1, 0, 4, kCallback, 0, 4));
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "u1.0.0.0", "1.0.0.2", "1.0.0.4", "end 1.0"});
  CHECK(!play.record_of(1, 0, 5, kCallback, 0, 5));
  CHECK(!play.unordered(1, 0));
  CHECK(!play.close(1, 0, {{0, 5}}));
  CHECK_SEEN(play.take(), {});
  CheckAllEnded(play);
}

// Of the records that all devices publish, the first with an index leaves, and the others with it are copies. One that
// somebody waits for comes but once.
TEST(test_replicated_records_leave_once) {
  Play play;
  play.open(1, 0);
  CHECK(play.record_of(1, 0, 0, kReplicated, /*device=*/1, 0));
  CHECK(play.record_of(1, 0, 0, kReplicated, /*device=*/0, 0));
  CHECK(play.record_of(1, 0, 2, kReplicated, /*device=*/0, 0));
  CHECK(play.record_of(1, 0, 2, kReplicated, /*device=*/1, 0));
  CHECK(play.record_of(1, 0, 3, kReplicated | kCallback, /*device=*/0, /*reply=*/9));
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  CHECK(play.record_of(1, 0, 1, kReplicated, /*device=*/1, 0));
  CHECK_SEEN(play.take(), {"1.0.0.1", "1.0.0.2", "1.0.0.3"});
  CHECK(play.record_of(1, 0, 1, kReplicated, /*device=*/0, 0));
  CHECK_SEEN(play.take(), {});
}

// Nothing tells copies of an unordered record apart, but that they are of another device than the one heard first.
TEST(test_replicated_unordered_records_leave_once) {
  for (const int32_t first : {0, 1, 2}) {
    Play play;
    play.open(1, 0);
    for (const int32_t device : {first, 0, 1, 2}) CHECK(play.unordered_of_all(1, 0, device));
    CHECK_SEEN(play.take(), {"u1.0.0.0", "u1.0.0.0"}); // the first one's two
    CHECK_EQ(play.order.take_discarded(), uint64_t{2});
  }
}

// A device that waits for an answer which has been given already is told that none will come: what would be parked for
// it is not wanted. A copy for which nobody waits is nothing to tell of.
TEST(test_accept_of_what_has_left) {
  Play play;
  play.open(1, 0);
  CHECK(play.record_of(1, 0, 0, kCallback, /*device=*/0, /*reply=*/1));
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  CHECK(!play.record_of(1, 0, 0, kCallback, /*device=*/1, /*reply=*/2));
  CHECK(play.record_of(1, 0, 0, kCallback, /*device=*/1, /*reply=*/0));
  CHECK_SEEN(play.take(), {});
}

// What leaves a failed epoch says that it has failed.
TEST(test_failed_epochs_records_say_so) {
  ReleaseOrder order;
  std::vector<Finished> finished;
  std::vector<std::string> seen;
  const auto release = [&](const RecordHeader &header, Payload &&, const EpochInfo &info) {
    seen.push_back(std::to_string(header.token.index) + (info.failed ? " failed" : ""));
  };
  const std::byte nothing{};
  order.open({1, 0, 0}, 1);
  for (uint32_t index : {0u, 2u}) {
    CHECK(order.accept(Header(1, 0, index), {&nothing, 0, nullptr}, release));
  }
  order.fail(1, 0);
  CHECK(order.accept(Header(1, 0, 4), {&nothing, 0, nullptr}, release));
  while (order.advance(release, finished)) {
  }
  CHECK_SEEN(seen, {"0", "2 failed", "4 failed"});
  CHECK_EQ(finished.size(), size_t{1});
}

// oldest_open() is the number of the oldest dispatch that has not ended, whichever thread's it is.
TEST(test_oldest_open_dispatch) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.open(1, 1); // dispatch 3
  CHECK_EQ(play.order.oldest_open(), uint64_t{1});
  play.order.fail(2, 0);
  play.advance_to_the_end();
  CHECK_EQ(play.order.oldest_open(), uint64_t{1});
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_EQ(play.order.oldest_open(), uint64_t{3});
  play.order.fail(1, 1);
  play.advance_to_the_end();
  CHECK(play.order.oldest_open() > uint64_t{3});
}

} // namespace
} // namespace effects::order_test
