// ReleaseOrder: suspended streams, and the one whose records alone may leave.
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

namespace effects::order_suspension_test {
namespace {

using check::MakeToken;
using check::Random;

// A suspended stream releases nothing in order, neither what is parked nor what comes, and none of its epochs ends,
// until it is resumed as often as it was held; other streams go on.
TEST(test_suspended_stream_waits_for_its_resumption) {
  Play play;
  play.open(1, 0);
  play.open(2, 0);
  play.record(1, 0, 1);
  play.order.suspend(1);
  play.order.suspend(1);
  CHECK(play.order.any_suspended());
  CHECK(play.record(1, 0, 0));
  play.close(1, 0, {{0, 2}});
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0"});
  play.order.resume(1);
  CHECK(play.order.any_suspended());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(1);
  CHECK(!play.order.any_suspended());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "end 1.0"});
  CheckAllEnded(play);
}

// An unordered record of a suspended stream leaves when it comes: it never waits for anything.
TEST(test_unordered_record_passes_its_suspended_stream) {
  Play play;
  play.open(1, 0);
  play.order.suspend(1);
  play.unordered(1, 0, 4);
  CHECK_SEEN(play.take(), {"u1.0.0.4"});
}

// An epoch that is complete, or has failed, does not end while its stream is suspended, and ends when it is resumed.
TEST(test_suspended_epoch_does_not_end) {
  for (bool fails : {false, true}) {
    Play play;
    play.open(1, 0);
    play.open(1, 1);
    play.record(1, 0, 0);
    CHECK_SEEN(play.take(), {"1.0.0.0"});
    play.order.suspend(1);
    if (fails)
      play.order.fail(1, 0);
    else
      play.close(1, 0, {{0, 1}});
    play.order.fail(1, 1);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {});
    CHECK_EQ(play.order.open_epochs(), size_t{2});
    play.order.resume(1);
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"end 1.0", "end 1.1"});
  }
}

// While there is only one stream, nothing in order leaves the others, plain effects included; then everything does.
TEST(test_only_one_stream) {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.restrict_to(1);
  play.plain(0); // dispatch 3
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0"});
  play.order.lift_restriction();
  play.order.suspend(1); // as for its run
  play.order.resume(1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0", "plain.0.0.0", "end plain.0"});
  CheckAllEnded(play);
}

} // namespace
} // namespace effects::order_suspension_test
