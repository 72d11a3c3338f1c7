// ReleaseOrder: suspended streams, and the one whose records alone may leave.
#include <string>
#include <vector>

#include "order_play.h"

namespace effects::order_suspension_test {
namespace {

// A suspended domain releases nothing, neither what is parked nor what comes, and the host hears of the end of none of
// its epochs, until it is resumed as often as it was suspended; other streams go on.
TEST(test_suspended_stream_waits_for_its_resumption) {
  Play play;
  play.open(1, 0);
  play.open(2, 0);
  play.record(1, 0, 1);
  const uint64_t runs[] = {play.order.suspend(1, 0), play.order.suspend(1, 0)};
  CHECK(play.order.any_suspended());
  CHECK(play.record(1, 0, 0));
  play.close(1, 0, {{0, 2}});
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0"});
  play.order.resume(1, runs[1]);
  CHECK(play.order.any_suspended());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(1, runs[0]);
  CHECK(!play.order.any_suspended());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "end 1.0"});
  CheckAllEnded(play);
}

// An unordered record of a suspended stream leaves when it comes: it never waits for anything.
TEST(test_unordered_record_passes_its_suspended_stream) {
  Play play;
  play.open(1, 0);
  play.order.suspend(1, 0);
  play.unordered(1, 0, 4);
  CHECK_SEEN(play.take(), {"u1.0.0.4"});
}

// The host does not hear that an epoch is complete, or has failed, while a domain of its stream is suspended.
TEST(test_suspended_epoch_does_not_end) {
  for (bool fails : {false, true}) {
    Play play;
    play.open(1, 0);
    play.open(1, 1);
    play.record(1, 0, 0);
    CHECK_SEEN(play.take(), {"1.0.0.0"});
    const uint64_t run = play.order.suspend(1, 0);
    if (fails)
      play.order.fail(1, 0);
    else
      play.close(1, 0, {{0, 1}});
    play.order.fail(1, 1);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {});
    CHECK_EQ(play.order.open_epochs(), size_t{2});
    play.order.resume(1, run);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"end 1.0", "end 1.1"});
  }
}

// Other domains of a suspended one go on, in its epoch and in those behind, each as far as its own records are there.
// The host hears of ends in the order of epochs, and of none whose records a run may have.
TEST(test_other_domains_go_on) {
  for (bool fails : {false, true}) {
    Play play;
    for (uint32_t epoch : {0, 1, 2}) play.open(1, epoch);
    play.record(1, 0, 0, 7);
    CHECK_SEEN(play.take(), {"1.0.7.0"});
    const uint64_t slow = play.order.suspend(1, 7);
    play.record(1, 0, 1, 7);
    play.record(1, 0, 0, 8);
    CHECK_SEEN(play.take(), {"1.0.8.0"});
    play.record(1, 1, 0, 8); // not before it is known that the epoch ahead has no more
    play.record(1, 1, 0, 7);
    play.record(1, 2, 0, 8);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {});
    if (fails)
      play.order.fail(1, 0);
    else
      play.close(1, 0, {{7, 2}, {8, 1}});
    play.close(1, 1, {{7, 1}, {8, 2}}); // a record is still to come
    play.close(1, 2, {{8, 1}});
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"1.1.8.0"});
    play.record(1, 1, 1, 8);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"1.1.8.1", "1.2.8.0"});
    play.order.resume(1, slow);
    play.advance();
    CHECK_SEEN(play.take(), {"1.0.7.1", "end 1.0", "1.1.7.0", "end 1.1", "end 1.2"});
    CheckAllEnded(play);
  }
}

// An epoch that ends while runs are under way waits for these, and for none that begins later.
TEST(test_end_waits_for_earlier_runs) {
  Play play;
  for (uint32_t epoch : {0, 1}) play.open(1, epoch);
  play.record(1, 0, 0, 7);
  const uint64_t first = play.order.suspend(1, 7);
  play.order.restrict_to(1, 8); // the batch has the second run, in which the epoch ends
  play.record(1, 0, 0, 8);
  play.close(1, 0, {{7, 1}, {8, 1}});
  play.advance_to_the_end();
  play.order.lift_restriction();
  const uint64_t second = play.order.suspend(1, 8);
  play.order.resume(1, first);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.7.0", "1.0.8.0"});
  const uint64_t third = play.order.suspend(1, 7);
  play.order.resume(1, second);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  play.close(1, 1, {{7, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(1, third);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.1"});
  CheckAllEnded(play);
}

// While there is only one stream, nothing in order leaves the others, plain effects included; then everything does.
TEST(test_only_one_stream) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.restrict_to(1, 0);
  play.plain(0); // dispatch 3
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0"});
  play.order.lift_restriction();
  play.order.resume(1, play.order.suspend(1, 0)); // as for its run
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0", "plain.0.0.0", "end plain.0"});
  CheckAllEnded(play);
}

// The host hears which domains of an epoch have more to come, or that none has while a function runs, each once; not of
// a stream with one domain.
TEST(test_complete_epochs) {
  const auto complete = [](Play &play) {
    std::vector<std::string> seen;
    for (const CompleteEpoch &each : play.order.take_complete()) {
      std::string one = std::to_string(each.thread) + "." + std::to_string(each.epoch) + ":";
      for (const uint32_t domain : each.left) one += " " + std::to_string(domain);
      seen.push_back(one);
    }
    return seen;
  };
  for (bool several : {true, false}) {
    Play play;
    for (uint32_t epoch : {0, 1, 2}) play.open(1, epoch);
    play.record(1, 0, 0, 7);
    const uint64_t slow = play.order.suspend(1, 7);
    play.record(1, 0, 1, 7);
    if (several) play.record(1, 1, 0, 8);
    play.close(1, 0, {{7, 2}});
    play.close(1, 1, {{several ? 8u : 7u, several ? 1u : 0u}});
    play.advance_to_the_end();
    if (several) CHECK_SEEN(complete(play), {"1.0: 7", "1.1: 7"}); // the last is still open
    play.advance_to_the_end();
    CHECK_SEEN(complete(play), {});
    play.order.resume(1, slow);
    const uint64_t fast = play.order.suspend(1, several ? 9 : 7); // another function
    play.advance_to_the_end();
    if (several) CHECK_SEEN(complete(play), {"1.0:", "1.1:"});
    CHECK_SEEN(complete(play), {});
    play.order.resume(1, fast);
    play.order.fail(1, 2);
    play.advance_to_the_end();
    CHECK_SEEN(complete(play), {});
    CheckAllEnded(play);
  }
}

// Nor is anything left of an epoch that ends in the batch of its last function: the host hears so before it runs that.
TEST(test_complete_with_its_run) {
  Play play;
  play.open(1, 0);
  play.record(1, 0, 0, 8);
  play.order.restrict_to(1, 7); // as for the run of the next record
  play.record(1, 0, 0, 7);
  play.close(1, 0, {{7, 1}, {8, 1}});
  play.advance_to_the_end();
  const std::vector<CompleteEpoch> complete = play.order.take_complete();
  CHECK(complete.size() == 1 && complete[0].epoch == 0 && complete[0].left.empty());
  play.order.lift_restriction();
  play.order.resume(1, play.order.suspend(1, 7));
  CheckAllEnded(play);
}

} // namespace
} // namespace effects::order_suspension_test
