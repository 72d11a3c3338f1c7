// ReleaseOrder: untracked records, and who waits for whom.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "order_play.h"

namespace effects {
namespace {

using check::MakeToken;
using check::Random;

// An untracked record waits for every program that was dispatched before it, of whatever thread, and for no later one.
TEST(test_untracked_record_waits_for_earlier_dispatches) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.open(3, 0); // dispatch 3
  play.untracked(2, 0);
  play.untracked(2, 1);
  CHECK_SEEN(play.take(), {});
  play.close(2, 0, {{0, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0", "untracked.0", "untracked.1"});
  play.order.fail(3, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 3.0"});
  CheckAllEnded(play);
}

// If none of these programs ends, what has come passes them, and nothing that comes later.
TEST(test_untracked_records_pass) {
  Play play;
  CHECK(!play.order.is_untracked_held_up());
  play.order.let_untracked_pass();
  play.open(1, 0); // dispatch 1
  play.untracked(1, 1);
  CHECK(!play.order.is_untracked_held_up()); // for the one before it, which has not come
  play.untracked(1, 0);
  CHECK(play.order.is_untracked_held_up());
  CHECK_SEEN(play.take(), {});
  play.order.let_untracked_pass();
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.0", "untracked.1"});
  play.untracked(1, 2);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.close(1, 0, {{0, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0", "untracked.2"});
  CheckAllEnded(play);
}

// The newest of the programs that were dispatched before it is one of them.
TEST(test_untracked_record_waits_for_the_newest_dispatch) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.untracked(1, 0);
  CHECK_SEEN(play.take(), {});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0", "untracked.0"});
  CheckAllEnded(play);
}

// Untracked records are in the order of their own numbers, step over their gaps, and the unordered ones do not wait.
TEST(test_untracked_records_are_in_order) {
  Play play;
  play.untracked(0, 1);
  play.untracked_unordered(0);
  CHECK_SEEN(play.take(), {"uuntracked.0"});
  play.untracked(0, 0);
  CHECK_SEEN(play.take(), {"untracked.0", "untracked.1"});
  play.untracked(0, 4);
  play.order.accept_drop({{StreamOf(kUntrackedThread, 0), 0, 0, 2}, 2});
  play.advance();
  CHECK_SEEN(play.take(), {"untracked.4"});
  CheckAllEnded(play);
}

// Untracked numbers wrap around at 2^32 as well: what is next is still known to be.
TEST(test_untracked_index_wraps_around) {
  Play play;
  for (uint64_t at = 0; at < (uint64_t{1} << 32); at += uint64_t{1} << 30) {
    play.order.accept_drop({{StreamOf(kUntrackedThread, 0), 0, 0, static_cast<uint32_t>(at)}, uint64_t{1} << 30});
    play.advance();
  }
  CHECK(play.order.releasable(Header(kUntrackedThread, 0, 0)));
  CHECK(!play.order.releasable(Header(kUntrackedThread, 0, 1)));
  play.untracked(0, 1);
  play.untracked(0, 0);
  CHECK_SEEN(play.take(), {"untracked.0", "untracked.1"});
}

// The one stream may be that of the untracked records.
TEST(test_only_untracked_records) {
  Play play;
  play.open(1, 0);
  play.order.restrict_to(kUntrackedThread);
  play.record(1, 0, 0);
  play.untracked(0, 0);
  play.advance();
  CHECK_SEEN(play.take(), {"untracked.0"});
  play.order.lift_restriction();
  play.advance();
  CHECK_SEEN(play.take(), {"1.0.0.0"});
}

// A nested stream does not wait for untracked records that were published before its programs, nor these for it; a
// stream that is not nested does.
TEST(test_nested_stream_does_not_wait_for_untracked_records) {
  Play play;
  play.order.expect_untracked();
  play.order.nest(2);
  play.open(1, 0); // dispatch 1
  play.untracked(1, 0);
  play.open(2, 0); // dispatch 2
  play.open(3, 0); // dispatch 3
  play.record(2, 0, 0);
  CHECK_SEEN(play.take(), {"2.0.0.0"});
  play.record(3, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.open(2, 1); // dispatch 4, and stays open
  play.untracked(4, 1);
  for (uint32_t thread : {1u, 3u}) play.order.fail(thread, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0", "untracked.0", "3.0.0.0", "end 3.0", "untracked.1"});
}

// An untracked record that somebody waits for passes suspended streams, with those before it, once the functions there
// are taken to wait for it; and no stream that is not suspended.
TEST(test_awaited_untracked_record_passes_suspended_streams) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.suspend(1);
  play.untracked(1, 0);
  play.untracked(1, 1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  CHECK(!play.order.is_asked_held_up());
  play.untracked(1, 2, /*reply=*/5);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  CHECK(play.order.is_asked_held_up());
  play.order.let_asked_pass(1);
  CHECK(!play.order.is_asked_held_up());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.0", "untracked.1", "untracked.2"});
  play.untracked(1, 3); // nobody waits any more
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.untracked(2, 4, /*reply=*/6); // behind dispatch 2, whose stream is not suspended
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.3"});
  play.order.fail(2, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0", "untracked.4"});
  play.order.resume(1);
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// Functions are taken to wait until they have ended: the next ones are not, whether they run for a stream or for
// untracked records. A stream that is only held is passed at once.
TEST(test_functions_are_taken_to_wait_until_they_end) {
  for (const uint32_t thread : {1u, kUntrackedThread}) {
    Play play;
    play.open(1, 0); // dispatch 1
    for (uint32_t run = 0; run < 2; ++run) {
      play.order.suspend(thread);
      play.order.suspend(thread);
      play.untracked(thread == 1 ? 1 : 0, run, /*reply=*/run + 1);
      play.advance_to_the_end();
      CHECK_SEEN(play.take(), {});
      play.order.let_asked_pass(thread);
      play.order.resume(thread);
      play.advance_to_the_end();
      CHECK_SEEN(play.take(), {"untracked." + std::to_string(run)});
      play.order.resume(thread);
    }
    play.order.hold(1);
    play.untracked(1, 2, /*reply=*/3);
    CHECK(!play.order.is_asked_held_up());
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"untracked.2"});
  }
}

// While somebody in a suspended stream waits for untracked records, they pass suspended streams, and no others.
TEST(test_impatient_untracked_records_pass_suspended_streams) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.suspend(1);
  play.untracked(1, 0);
  play.untracked(2, 1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.set_untracked_awaited(true);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.0"});
  play.order.set_untracked_awaited(false);
  play.order.fail(2, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.order.set_untracked_awaited(true);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.1"});
}

// An epoch may end with records that a run is replaying. Untracked records from after it wait for that run; those from
// before it do not, nor one for which the run is taken to wait.
TEST(test_untracked_records_wait_for_a_run_with_which_an_epoch_ends) {
  for (const bool asked : {false, true}) {
    Play play;
    play.open(1, 0); // dispatch 1
    play.open(1, 1); // dispatch 2
    play.order.restrict_to(1);
    for (uint32_t epoch : {0u, 1u}) {
      play.record(1, epoch, 0);
      play.close(1, epoch, {{0, 1}});
    }
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0", "1.1.0.0", "end 1.1"});
    play.order.lift_restriction();
    play.order.suspend(1);
    play.order.hold(1); // the host's hold has nothing to do with the run
    play.untracked(0, 0);
    CHECK_SEEN(play.take(), {"untracked.0"});
    play.untracked(1, 1);
    play.untracked(2, 2, asked ? 5 : 0);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {});
    if (asked)
      play.order.let_asked_pass(1);
    else
      play.order.resume(1);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"untracked.1", "untracked.2"});
    CheckAllEnded(play);
  }
}

// While functions run for untracked records, neither the untracked records behind them leave nor the programs
// dispatched after them; those dispatched before do.
TEST(test_suspended_untracked_records) {
  Play play;
  play.order.expect_untracked();
  play.untracked(0, 0);
  CHECK_SEEN(play.take(), {"untracked.0"});
  play.order.suspend(kUntrackedThread);
  play.open(1, 0);
  play.untracked(0, 1);
  play.record(1, 0, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(kUntrackedThread);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"untracked.1", "1.0.0.0"});

  Play other;
  other.order.expect_untracked();
  other.open(1, 0); // dispatch 1
  other.open(2, 0); // dispatch 2
  other.order.fail(1, 0);
  other.untracked(1, 0);
  other.advance_to_the_end();
  CHECK_SEEN(other.take(), {"end 1.0", "untracked.0"});
  other.order.suspend(kUntrackedThread);
  other.record(2, 0, 0);
  CHECK_SEEN(other.take(), {});
  other.order.resume(kUntrackedThread);
  other.advance_to_the_end();
  CHECK_SEEN(other.take(), {"2.0.0.0"});
}

// releasable() knows that untracked records are suspended, that none is let, and who hurries them past it.
TEST(test_suspended_untracked_records_are_not_releasable) {
  Play play;
  const auto next = [&] { return play.order.releasable(Header(kUntrackedThread, 0, 0)); };
  CHECK(next());
  play.order.suspend(kNoThread);
  CHECK(next());
  play.order.suspend(kUntrackedThread);
  CHECK(!next());
  play.order.set_untracked_awaited(true);
  CHECK(next());
  play.order.set_untracked_awaited(false);
  CHECK(!next());
  play.order.resume(kUntrackedThread);
  CHECK(next());
  play.order.restrict_to(1);
  CHECK(!next());
  play.order.restrict_to(kUntrackedThread);
  CHECK(next());
  play.order.restrict_to(kNoThread);
  CHECK(!next());
  play.order.lift_restriction();
  CHECK(next());
}

} // namespace
} // namespace effects
