// ReleaseOrder: which epochs wait for plain epochs, and for which epochs these wait.
#include <string>

#include "order_play.h"

namespace effects::order_plain_test {
namespace {

// A plain epoch waits so long for others and no longer, each for its own time. Then programs behind it go on, too.
TEST(test_plain_epoch_waits_for_a_while) {
  const std::chrono::nanoseconds half = std::chrono::nanoseconds(kPlainPatience) / 2;
  Play play;
  play.open(1, 0);
  play.plain(0);
  play.open(2, 0);
  play.record(2, 0, 0);
  play.pass(half);
  play.plain(1);
  play.pass(half - std::chrono::nanoseconds(1));
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.pass(std::chrono::nanoseconds(1));
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.0.0.0", "end plain.0", "2.0.0.0"});
  play.pass(half);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.1.0.0", "end plain.1"});
  for (uint32_t thread : {1u, 2u}) play.order.fail(thread, 0);
  play.advance_to_the_end();
  CheckAllEnded(play);
}

// The effect of a plain epoch that was dropped is not waited for.
TEST(test_dropped_plain_effect) {
  Play play;
  play.open(kPlainThread, 0);
  play.drop(kPlainThread, 0, 0, 1);
  play.close(kPlainThread, 0, {{0, 1}});
  play.plain(1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end plain.0", "plain.1.0.0", "end plain.1"});
  CheckAllEnded(play);
}

// A nested stream does not wait for plain epochs that were opened before its programs, nor these for it; a stream that
// is not nested does.
TEST(test_nested_stream_and_plain_epochs_do_not_wait) {
  Play play;
  play.order.nest(2);
  play.open(1, 0);
  play.plain(0);
  play.open(2, 0);
  play.open(3, 0);
  play.record(2, 0, 0);
  CHECK_SEEN(play.take(), {"2.0.0.0"});
  play.record(3, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.open(2, 1); // stays open
  play.plain(1);
  for (uint32_t thread : {1u, 3u}) play.order.fail(thread, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(),
             {"end 1.0", "plain.0.0.0", "end plain.0", "3.0.0.0", "end 3.0", "plain.1.0.0", "end plain.1"});
}

// An epoch may end with records that a run is replaying. What comes after it waits for that run: plain epochs for those
// of programs, and programs for plain ones.
TEST(test_run_with_which_an_epoch_ends_is_waited_for) {
  for (const uint32_t first : {1u, kPlainThread}) {
    const uint32_t second = first == 1 ? kPlainThread : 1;
    const auto name = [](uint32_t thread) { return thread == 1 ? std::string("1") : std::string("plain"); };
    Play play;
    play.order.restrict_to(first, 0);
    for (const uint32_t thread : {first, second}) {
      play.open(thread, 0);
      play.record(thread, 0, 0);
      play.close(thread, 0, {{0, 1}});
    }
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {name(first) + ".0.0.0", "end " + name(first) + ".0"});
    play.order.lift_restriction();
    const uint64_t run = play.order.suspend(first, 0);
    play.order.hold(1); // the host's hold has nothing to do with the run
    play.order.let_go(1);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {});
    play.order.resume(first, run);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {name(second) + ".0.0.0", "end " + name(second) + ".0"});
    CheckAllEnded(play);
  }
}

// While functions run for a plain epoch, neither the plain epochs behind it leave nor the programs dispatched after it;
// those dispatched before do.
TEST(test_suspended_plain_stream) {
  Play play;
  play.open(1, 0);
  play.pass(kPlainPatience);
  play.plain(0);
  play.pass(kPlainPatience);
  play.advance();
  CHECK_SEEN(play.take(), {"plain.0.0.0"});
  const uint64_t run = play.order.suspend(kPlainThread, 0);
  play.open(2, 0);
  play.plain(1);
  play.record(1, 0, 0);
  play.record(2, 0, 0);
  play.pass(2 * kPlainPatience);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  play.order.resume(kPlainThread, run);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end plain.0", "2.0.0.0", "plain.1.0.0", "end plain.1"});
}

// A plain record whose answer a device has awaited for long passes functions that run for plain epochs, with those
// before it and none behind it. Epochs end in their turn.
TEST(test_awaited_plain_record_passes_functions) {
  Play play;
  play.plain(0);
  CHECK_SEEN(play.take(), {"plain.0.0.0"});
  const uint64_t run = play.order.suspend(kPlainThread, 0);
  play.plain(1);
  play.plain(2, /*reply=*/5);
  play.plain(3);
  play.pass(kPlainPatience - std::chrono::nanoseconds(1));
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.pass(std::chrono::nanoseconds(1));
  play.order.restrict_to(1, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.lift_restriction();
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.1.0.0", "plain.2.0.0"});
  play.order.resume(kPlainThread, run);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end plain.0", "end plain.1", "end plain.2", "plain.3.0.0", "end plain.3"});
  CheckAllEnded(play);
}

// But it is not in one batch with a function, which it could not pass there.
TEST(test_awaited_plain_record_does_not_stand_behind_a_function) {
  Play play;
  play.open(kPlainThread, 0);
  play.record_of(kPlainThread, 0, 0, kCallback, 0, 0);
  play.close(kPlainThread, 0, {{0, 1}});
  play.order.restrict_to(kPlainThread, 0); // the batch has the function
  play.plain(1, /*reply=*/5);
  play.pass(kPlainPatience);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.0.0.0", "end plain.0"});
  play.order.lift_restriction();
  const uint64_t run = play.order.suspend(kPlainThread, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.1.0.0"});
  play.order.resume(kPlainThread, run);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end plain.1"});
  CheckAllEnded(play);
}

// releasable() knows of the programs before a plain epoch, of plain ones before a program, and of functions that run.
TEST(test_releasable_plain_records) {
  Play play;
  play.open(kPlainThread, 0);
  play.open(1, 0);
  play.open(kPlainThread, 1);
  const auto plain = [&](uint32_t epoch) { return play.order.releasable(Header(kPlainThread, epoch, 0)); };
  CHECK(plain(0) && !plain(1) && !play.order.releasable(Header(1, 0, 0)));
  const uint64_t run = play.order.suspend(kPlainThread, 0);
  CHECK(!plain(0));
  play.order.resume(kPlainThread, run);
  play.order.restrict_to(1, 0);
  CHECK(!plain(0));
  play.order.lift_restriction();
  play.order.fail(kPlainThread, 0);
  play.advance_to_the_end();
  CHECK(!plain(1) && play.order.releasable(Header(1, 0, 0)));
  play.pass(kPlainPatience);
  CHECK(plain(1));
}

} // namespace
} // namespace effects::order_plain_test
