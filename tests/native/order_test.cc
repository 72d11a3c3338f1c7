// ReleaseOrder: whatever order records arrive in, they leave in program order, and every epoch ends.
#include "../../dispatch/native/release_order.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"

namespace effects {
namespace {

using check::MakeToken;
using check::Random;

// A ReleaseOrder and the list of what left it: "thread.epoch.domain.index", "u" before an unordered one, "plain.index",
// and "end thread.epoch".
class Play {
public:
  void open(uint32_t thread, uint32_t epoch) { order.open({thread, epoch, 0}, ++dispatch); }
  // What takes a record returns what accept() does: whether anybody will ever want it.
  bool record(uint32_t thread, uint32_t epoch, uint32_t index, uint32_t domain = 0) {
    return accept(Kind::kOrdered, MakeToken(thread, domain, epoch, index));
  }
  bool unordered(uint32_t thread, uint32_t epoch, uint32_t number = 0) {
    return accept(Kind::kUnordered, MakeToken(thread, 0, epoch, number));
  }
  // A record with these flags, from this device, that somebody waits for under this number.
  bool record_of(uint32_t thread, uint32_t epoch, uint32_t index, uint16_t flags, int32_t device, uint32_t reply) {
    return accept(Kind::kOrdered, MakeToken(thread, 0, epoch, index), flags, device, reply);
  }
  bool close(uint32_t thread, uint32_t epoch, const std::vector<std::pair<uint32_t, uint32_t>> &finals) {
    std::vector<Token> tokens;
    for (auto &[domain, index] : finals) tokens.push_back(MakeToken(thread, domain, epoch, index));
    RecordHeader header = make(Kind::kClose, tokens.at(0));
    header.payload_size = tokens.size() * sizeof(Token);
    const auto *bytes = reinterpret_cast<const std::byte *>(tokens.data());
    return order.accept(header, {bytes, header.payload_size, nullptr}, [this](auto &&...args) { left(args...); });
  }
  void plain(uint32_t stamp, uint32_t index, uint32_t reply = 0) {
    CHECK(accept(Kind::kOrdered, {kPlainThread << kDomainBits, stamp, 0, index}, 0, 0, reply));
  }
  void plain_unordered(uint32_t stamp) { CHECK(accept(Kind::kUnordered, {kPlainThread << kDomainBits, stamp, 0, 0})); }
  void drop(uint32_t thread, uint32_t epoch, uint32_t index, uint64_t count, uint32_t domain = 0) {
    order.accept_drop({MakeToken(thread, domain, epoch, index), count});
  }

  bool advance() {
    const bool again = order.advance([this](auto &&...args) { left(args...); }, finished);
    note_ends();
    return again;
  }
  void advance_to_the_end() {
    while (advance()) {
    }
  }
  // What left since the last call.
  std::vector<std::string> take() { return std::exchange(seen, {}); }

  ReleaseOrder order;
  uint64_t dispatch = 0;
  std::vector<std::string> seen;

private:
  // Called before a record is noted too, so that ends stand between the records where they happened.
  void note_ends() {
    for (const Finished &one : finished)
      seen.push_back("end " + std::to_string(one.thread) + "." + std::to_string(one.epoch));
    finished.clear();
  }
  std::vector<Finished> finished;

  static RecordHeader make(Kind kind, const Token &token) {
    RecordHeader header{};
    header.kind = kind;
    header.token = token;
    return header;
  }
  bool accept(Kind kind, const Token &token, uint16_t flags = 0, int32_t device = 0, uint32_t reply = 0) {
    // The payload repeats the token, so that a parked record that leaves with another's bytes is seen.
    RecordHeader header = make(kind, token);
    header.flags = flags;
    header.device = device;
    header.reply = reply;
    header.payload_size = sizeof token;
    const auto *bytes = reinterpret_cast<const std::byte *>(&token);
    return order.accept(header, {bytes, sizeof token, nullptr}, [this](auto &&...args) { left(args...); });
  }
  void left(const RecordHeader &header, const Payload &payload, const EpochInfo &info) {
    CHECK_EQ(header.payload_size, sizeof(Token));
    CHECK_EQ(payload.size, sizeof(Token));
    CHECK(std::memcmp(payload.data, &header.token, sizeof(Token)) == 0);
    note_ends();
    const Token &token = header.token;
    CHECK_EQ(info.thread, ThreadOf(token));
    const std::string mark = header.kind == Kind::kUnordered ? "u" : "";
    if (info.thread == kPlainThread) {
      seen.push_back(mark + "plain." + std::to_string(token.index));
      return;
    }
    CHECK_EQ(info.epoch, token.epoch);
    const uint32_t domain = token.stream & 0xFF;
    seen.push_back(mark + std::to_string(info.thread) + "." + std::to_string(token.epoch) + "." +
                   std::to_string(domain) + "." + std::to_string(token.index));
  }
};

void CheckAllEnded(Play &play) {
  CHECK_EQ(play.order.open_epochs(), size_t{0});
  CHECK_EQ(play.order.parked_bytes(), size_t{0});
}

// Records that come in order leave at once, and the epoch ends after its close.
void test_records_in_order_leave_at_once() {
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
void test_early_record_is_parked() {
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

// A later epoch of the same thread waits for the earlier one, however complete it is.
void test_later_epoch_waits_for_the_earlier() {
  Play play;
  for (uint32_t epoch = 0; epoch < 3; ++epoch) play.open(1, epoch);
  play.record(1, 2, 0);
  play.close(1, 2, {{0, 1}});
  play.record(1, 1, 1);
  play.record(1, 1, 0);
  play.close(1, 1, {{0, 2}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0", "1.1.0.0", "1.1.0.1", "end 1.1", "1.2.0.0", "end 1.2"});
  CheckAllEnded(play);
}

// Threads do not wait for each other.
void test_threads_are_independent() {
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

// Domains of one program count for themselves, and its epoch ends when all of them are complete.
void test_domains_count_for_themselves() {
  Play play;
  play.open(1, 0);
  play.record(1, 0, 0, /*domain=*/5);
  play.record(1, 0, 1, /*domain=*/2);
  CHECK_SEEN(play.take(), {"1.0.5.0"});
  play.close(1, 0, {{2, 2}, {5, 1}, {7, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.record(1, 0, 0, /*domain=*/2);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.2.0", "1.0.2.1", "end 1.0"});
  CheckAllEnded(play);
}

// After a close, one scan more of all rings is asked for before the epoch ends: an unordered record may be in a ring
// that the scan had already passed.
void test_close_waits_for_one_more_scan() {
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

// The program of a close that came before its ordered records is not over until they have left, however many scans it
// takes.
void test_close_before_its_records_keeps_the_epoch_open() {
  Play play;
  play.open(1, 0);
  play.close(1, 0, {{0, 2}});
  for (int i = 0; i < 5; ++i) play.advance();
  CHECK_SEEN(play.take(), {});
  play.record(1, 0, 1);
  play.advance();
  play.record(1, 0, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "end 1.0"});
  CheckAllEnded(play);
}

// An unordered record leaves when it comes, in whatever epoch.
void test_unordered_record_leaves_on_arrival() {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  play.record(1, 1, 0);
  play.unordered(1, 1, 3);
  play.unordered(1, 0, 4);
  CHECK_SEEN(play.take(), {"u1.1.0.3", "u1.0.0.4"});
}

// A program without effects in order ends by its close alone.
void test_empty_program_ends() {
  Play play;
  play.open(1, 0);
  play.close(1, 0, {{0, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// A failed program's records that came leave in order, over the gaps, and the next program goes on.
void test_failed_epoch_releases_what_came() {
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
void test_epoch_may_fail_after_its_close() {
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
void test_failure_is_told_once() {
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
void test_second_devices_copies_are_dropped() {
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

// Dropped indices are not waited for, at the start, in the middle and at the end.
void test_gap_markers_are_stepped_over() {
  Play play;
  play.open(1, 0);
  play.record(1, 0, 2);
  play.record(1, 0, 6);
  play.drop(1, 0, 0, 2);
  play.drop(1, 0, 3, 3);
  play.drop(1, 0, 7, 1);
  play.close(1, 0, {{0, 8}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.2", "1.0.0.6", "end 1.0"});
  CheckAllEnded(play);
}

// A gap in an epoch whose turn has not come is remembered until it has.
void test_gap_in_a_later_epoch() {
  Play play;
  play.open(1, 0);
  play.open(1, 1);
  play.drop(1, 1, 0, 1);
  play.record(1, 1, 1);
  play.close(1, 1, {{0, 2}});
  play.close(1, 0, {{0, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0", "1.1.0.1", "end 1.1"});
  CheckAllEnded(play);
}

// A gap of one device that covers what another device did publish, or had dropped too, does not push the order on
// twice.
void test_overlapping_gaps_count_once() {
  Play play;
  play.open(1, 0);
  play.drop(1, 0, 1, 3); // 1 2 3
  play.drop(1, 0, 2, 3); // 2 3 4
  play.record(1, 0, 3);  // another device's
  play.record(1, 0, 0);
  play.advance();
  play.drop(1, 0, 4, 2); // 4 has been passed; 5 has not
  play.record(1, 0, 6);
  play.record(1, 0, 7);
  play.close(1, 0, {{0, 8}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.6", "1.0.0.7", "end 1.0"});
  CheckAllEnded(play);
}

// Two gaps that start at one index count as the longer of them.
void test_gaps_from_one_index() {
  for (bool longer_first : {false, true}) {
    Play play;
    play.open(1, 0);
    play.drop(1, 0, 1, longer_first ? 4 : 1);
    play.drop(1, 0, 1, longer_first ? 1 : 4);
    play.record(1, 0, 0);
    play.record(1, 0, 5);
    play.close(1, 0, {{0, 6}});
    play.advance_to_the_end();
    CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.5", "end 1.0"});
    CheckAllEnded(play);
  }
}

// Indices wrap around at 2^32, in order and out of order.
void test_index_wraps_around() {
  Play play;
  play.open(1, 0);
  play.drop(1, 0, 0, uint64_t{0x7FFFFFF0});
  play.advance();
  play.drop(1, 0, 0x7FFFFFF0, uint64_t{0x7FFFFFF0});
  play.advance();
  play.drop(1, 0, 0xFFFFFFE0, uint64_t{0x1E});
  play.advance();
  play.record(1, 0, 1);
  play.record(1, 0, 0xFFFFFFFF);
  play.record(1, 0, 0xFFFFFFFE);
  play.record(1, 0, 0xFFFFFFFF);
  CHECK_SEEN(play.take(), {"1.0.0.4294967294", "1.0.0.4294967295"});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 2}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "end 1.0"});
  CheckAllEnded(play);
}

// Epoch numbers wrap around too.
void test_epoch_wraps_around() {
  Play play;
  play.open(1, 0xFFFFFFFF);
  play.open(1, 0);
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.record(1, 0xFFFFFFFF, 0);
  play.close(1, 0xFFFFFFFF, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.4294967295.0.0", "end 1.4294967295", "1.0.0.0", "end 1.0"});
}

// A plain record waits for every program that was dispatched before it, of whatever thread, and for no later one.
void test_plain_record_waits_for_earlier_dispatches() {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.open(3, 0); // dispatch 3
  play.plain(2, 0);
  play.plain(2, 1);
  CHECK_SEEN(play.take(), {});
  play.close(2, 0, {{0, 0}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0", "plain.0", "plain.1"});
  play.order.fail(3, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 3.0"});
  CheckAllEnded(play);
}

// Plain records are in the order of their own numbers, step over their gaps, and the unordered ones do not wait.
void test_plain_records_are_in_order() {
  Play play;
  play.plain(0, 1);
  play.plain_unordered(0);
  CHECK_SEEN(play.take(), {"uplain.0"});
  play.plain(0, 0);
  CHECK_SEEN(play.take(), {"plain.0", "plain.1"});
  play.plain(0, 4);
  play.order.accept_drop({{kPlainThread << kDomainBits, 0, 0, 2}, 2});
  play.advance();
  CHECK_SEEN(play.take(), {"plain.4"});
  CheckAllEnded(play);
}

RecordHeader Header(uint32_t thread, uint32_t epoch, uint32_t index) {
  RecordHeader header{};
  header.kind = Kind::kOrdered;
  header.token = MakeToken(thread, 0, epoch, index);
  return header;
}

// releasable() says of a record whether it would leave at once, and claims all that is left of a failed program, which
// would be lost if it were still in a ring when its epoch ends.
void test_releasable_foretells_accept() {
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

// Plain numbers wrap around at 2^32 as well: what is next is still known to be.
void test_plain_index_wraps_around() {
  Play play;
  for (uint64_t at = 0; at < (uint64_t{1} << 32); at += uint64_t{1} << 30) {
    play.order.accept_drop({{kPlainThread << kDomainBits, 0, 0, static_cast<uint32_t>(at)}, uint64_t{1} << 30});
    play.advance();
  }
  CHECK(play.order.releasable(Header(kPlainThread, 0, 0)));
  CHECK(!play.order.releasable(Header(kPlainThread, 0, 1)));
  play.plain(0, 1);
  play.plain(0, 0);
  CHECK_SEEN(play.take(), {"plain.0", "plain.1"});
}

// A held stream releases nothing in order, neither what is parked nor what comes, and none of its epochs ends, until it
// is resumed as often as it was held; other streams go on.
void test_held_stream_waits_for_its_resumption() {
  Play play;
  play.open(1, 0);
  play.open(2, 0);
  play.record(1, 0, 1);
  play.order.hold(1);
  play.order.hold(1);
  CHECK(play.order.any_held());
  CHECK(play.record(1, 0, 0));
  play.close(1, 0, {{0, 2}});
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"2.0.0.0", "end 2.0"});
  play.order.resume(1);
  CHECK(play.order.any_held());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(1);
  CHECK(!play.order.any_held());
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "1.0.0.1", "end 1.0"});
  CheckAllEnded(play);
}

// An unordered record of a held stream leaves when it comes: it never waits for anything.
void test_unordered_record_passes_its_held_stream() {
  Play play;
  play.open(1, 0);
  play.order.hold(1);
  play.unordered(1, 0, 4);
  CHECK_SEEN(play.take(), {"u1.0.0.4"});
}

// An epoch that is complete, or has failed, does not end while its stream is held, and ends when it is resumed.
void test_held_epoch_does_not_end() {
  for (bool fails : {false, true}) {
    Play play;
    play.open(1, 0);
    play.open(1, 1);
    play.record(1, 0, 0);
    CHECK_SEEN(play.take(), {"1.0.0.0"});
    play.order.hold(1);
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

// While there is only one stream, nothing in order leaves the others, plain records included; then everything does.
void test_only_one_stream() {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.only(1);
  play.plain(0, 0);
  play.record(2, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.record(1, 0, 0);
  play.close(1, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0", "end 1.0"});
  play.order.only(ReleaseOrder::kNobody);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.0", "2.0.0.0", "end 2.0"});
  CheckAllEnded(play);
}

// The one stream may be that of the plain records.
void test_only_plain_records() {
  Play play;
  play.open(1, 0);
  play.order.only(kPlainThread);
  play.record(1, 0, 0);
  play.plain(0, 0);
  play.advance();
  CHECK_SEEN(play.take(), {"plain.0"});
  play.order.only(ReleaseOrder::kNobody);
  play.advance();
  CHECK_SEEN(play.take(), {"1.0.0.0"});
}

// A nested stream does not wait for plain records that were published before its programs, nor these for it; a stream
// that is not nested does.
void test_nested_stream_does_not_wait_for_plain_records() {
  Play play;
  play.order.expect_plain();
  play.order.nest(2);
  play.open(1, 0); // dispatch 1
  play.plain(1, 0);
  play.open(2, 0); // dispatch 2
  play.open(3, 0); // dispatch 3
  play.record(2, 0, 0);
  CHECK_SEEN(play.take(), {"2.0.0.0"});
  play.record(3, 0, 0);
  play.close(2, 0, {{0, 1}});
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.open(2, 1); // dispatch 4, and stays open
  play.plain(4, 1);
  for (uint32_t thread : {1u, 3u}) play.order.fail(thread, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0", "plain.0", "3.0.0.0", "end 3.0", "plain.1"});
}

// A plain record that somebody waits for passes held streams, with those before it, and no stream that is not held.
void test_awaited_plain_record_passes_held_streams() {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.hold(1);
  play.plain(1, 0);
  play.plain(1, 1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.plain(1, 2, /*reply=*/5);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.0", "plain.1", "plain.2"});
  play.plain(1, 3); // nobody waits any more
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.plain(2, 4, /*reply=*/6); // behind dispatch 2, whose stream is not held
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.3"});
  play.order.fail(2, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0", "plain.4"});
  play.order.resume(1);
  play.order.fail(1, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 1.0"});
  CheckAllEnded(play);
}

// While somebody in a held stream waits for plain records, they pass held streams, and no others.
void test_impatient_plain_records_pass_held_streams() {
  Play play;
  play.open(1, 0); // dispatch 1
  play.open(2, 0); // dispatch 2
  play.order.hold(1);
  play.plain(1, 0);
  play.plain(2, 1);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.impatient(true);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.0"});
  play.order.impatient(false);
  play.order.fail(2, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"end 2.0"});
  play.order.impatient(true);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.1"});
}

// While functions run for plain records, neither the plain records behind them leave nor the programs dispatched after
// them; those dispatched before do.
void test_held_plain_records() {
  Play play;
  play.order.expect_plain();
  play.plain(0, 0);
  CHECK_SEEN(play.take(), {"plain.0"});
  play.order.hold(kPlainThread);
  play.open(1, 0);
  play.plain(0, 1);
  play.record(1, 0, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {});
  play.order.resume(kPlainThread);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"plain.1", "1.0.0.0"});

  Play other;
  other.order.expect_plain();
  other.open(1, 0); // dispatch 1
  other.open(2, 0); // dispatch 2
  other.order.fail(1, 0);
  other.plain(1, 0);
  other.advance_to_the_end();
  CHECK_SEEN(other.take(), {"end 1.0", "plain.0"});
  other.order.hold(kPlainThread);
  other.record(2, 0, 0);
  CHECK_SEEN(other.take(), {});
  other.order.resume(kPlainThread);
  other.advance_to_the_end();
  CHECK_SEEN(other.take(), {"2.0.0.0"});
}

// A run that holds no thread counts as held, and nothing waits for it.
void test_held_no_thread() {
  Play play;
  play.order.expect_plain();
  play.order.hold(ReleaseOrder::kNoThread);
  play.order.hold(ReleaseOrder::kNoThread);
  play.plain(0, 0);
  CHECK_SEEN(play.take(), {"plain.0"});
  play.open(1, 0);
  play.record(1, 0, 0);
  play.advance_to_the_end();
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  CHECK(play.order.any_held());
  play.order.resume(ReleaseOrder::kNoThread);
  CHECK(play.order.any_held());
  play.order.hold(1);
  play.order.resume(ReleaseOrder::kNoThread);
  CHECK(play.order.any_held()); // streams of threads are held apart from it
  play.order.resume(1);
  CHECK(!play.order.any_held());
}

// releasable() knows that plain records are held, that none is let, and who hurries them past it.
void test_held_plain_records_are_not_releasable() {
  Play play;
  const auto next = [&] { return play.order.releasable(Header(kPlainThread, 0, 0)); };
  CHECK(next());
  play.order.hold(ReleaseOrder::kNoThread);
  CHECK(next());
  play.order.hold(kPlainThread);
  CHECK(!next());
  play.order.impatient(true);
  CHECK(next());
  play.order.impatient(false);
  CHECK(!next());
  play.order.resume(kPlainThread);
  CHECK(next());
  play.order.only(1);
  CHECK(!next());
  play.order.only(kPlainThread);
  CHECK(next());
  play.order.only(ReleaseOrder::kNoThread);
  CHECK(!next());
  play.order.only(ReleaseOrder::kNobody);
  CHECK(next());
}

// accept() says of a record whose epoch has failed and ended, or never was, that nobody will ever want it, and of every
// other that somebody does: one that leaves, is parked, is a copy, or comes before a failed epoch has ended.
void test_accept_says_whether_a_record_is_wanted() {
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

// Of records that all devices publish alike, those of the first that is heard of count; one that somebody waits for
// comes but once, and counts from whichever device.
void test_replicated_records_leave_once() {
  Play play;
  play.open(1, 0);
  CHECK(play.record_of(1, 0, 0, kReplicated, /*device=*/1, 0));
  CHECK(play.record_of(1, 0, 0, kReplicated, /*device=*/0, 0));
  CHECK(play.record_of(1, 0, 1, kReplicated, /*device=*/0, 0));
  CHECK_SEEN(play.take(), {"1.0.0.0"});
  CHECK(play.record_of(1, 0, 2, kReplicated | kCallback, /*device=*/0, /*reply=*/9));
  CHECK(play.record_of(1, 0, 1, kReplicated, /*device=*/1, 0));
  CHECK_SEEN(play.take(), {"1.0.0.1", "1.0.0.2"});
}

// What leaves a failed epoch says that it has failed.
void test_failed_epochs_records_say_so() {
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

// A large record's memory is moved and never copied, whether the record leaves at once or has been parked; one that has
// no memory of its own is copied when it is parked, and leaves without a block.
void test_blocks_are_moved() {
  ReleaseOrder order;
  std::vector<Finished> finished;
  std::map<uint32_t, const std::byte *> came;
  std::map<uint32_t, Block> left;
  constexpr size_t kSize = 100;
  const auto release = [&](const RecordHeader &header, Payload &&payload, const EpochInfo &) {
    CHECK_EQ(payload.size, kSize);
    const uint32_t index = header.token.index;
    const std::string expected(kSize, static_cast<char>('a' + index % 26));
    CHECK(std::memcmp(payload.data, expected.data(), kSize) == 0);
    if (header.flags & kLarge) {
      CHECK(payload.block.get() == payload.data);
      CHECK(payload.data == came.at(index));
    } else {
      CHECK(payload.block == nullptr);
    }
    left[index] = std::move(payload.block);
  };
  const auto accept = [&](RecordHeader header, bool large) {
    const uint32_t index = header.token.index;
    header.flags = large ? kLarge : 0;
    header.payload_size = kSize;
    Block block = AllocateBlock(kSize);
    std::memset(block.get(), 'a' + static_cast<int>(index % 26), kSize);
    came[index] = block.get();
    const std::byte *const data = block.get();
    if (large) {
      CHECK(order.accept(header, {data, kSize, std::move(block)}, release));
    } else {
      CHECK(order.accept(header, {data, kSize, nullptr}, release));
      std::memset(block.get(), 0, kSize); // its ring gives the room away
    }
  };
  order.open({1, 0, 0}, 1);
  accept(Header(1, 0, 0), true); // straight through
  CHECK_EQ(left.size(), size_t{1});
  accept(Header(1, 0, 3), true);
  accept(Header(1, 0, 2), false);
  CHECK_EQ(left.size(), size_t{1});
  CHECK(order.parked_bytes() > 2 * kSize);
  accept(Header(1, 0, 1), true);
  CHECK_EQ(left.size(), size_t{4});
  RecordHeader unordered = Header(1, 0, 10);
  unordered.kind = Kind::kUnordered;
  accept(unordered, true);
  order.open({1, 1, 0}, 2);
  accept(Header(1, 1, 20), true); // over a gap, when its program fails
  order.fail(1, 0);
  order.fail(1, 1);
  while (order.advance(release, finished)) {
  }
  accept(Header(kPlainThread, 2, 0), true);
  CHECK_EQ(left.size(), size_t{6});
  CHECK_EQ(order.parked_bytes(), size_t{0});
}

// An early copy of a large record that is parked already is freed, and the first one's memory leaves.
void test_parked_copy_of_a_block_is_freed() {
  ReleaseOrder order;
  std::vector<const std::byte *> left;
  const auto release = [&](const RecordHeader &, Payload &&payload, const EpochInfo &) {
    left.push_back(payload.block.get());
  };
  order.open({1, 0, 0}, 1);
  std::vector<const std::byte *> came;
  for (uint32_t index : {1u, 1u, 0u, 0u}) {
    RecordHeader header = Header(1, 0, index);
    header.flags = kLarge;
    header.payload_size = 8;
    Block block = AllocateBlock(8);
    came.push_back(block.get());
    const std::byte *const data = block.get();
    CHECK(order.accept(header, {data, 8, std::move(block)}, release));
  }
  CHECK((left == std::vector<const std::byte *>{came[2], came[0]}));
  CHECK_EQ(order.parked_bytes(), size_t{0});
}

// oldest_open() is the number of the oldest dispatch that has not ended, whichever thread's it is.
void test_oldest_open_dispatch() {
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
      if (open.empty() && all_opened && plain_next_ == plain_total_ && plain_waiting_.empty()) break;
      const uint64_t choice = random_.below(10);
      if (choice == 0 && !all_opened) {
        open_next();
      } else if (choice == 1 && plain_next_ < plain_total_) {
        plain_waiting_.emplace_back(plain_next_++, static_cast<uint32_t>(play_.dispatch));
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
    plain_total_ = static_cast<uint32_t>(random_.below(5));
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
    auto [index, stamp] = plain_waiting_[at];
    plain_waiting_.erase(plain_waiting_.begin() + static_cast<std::ptrdiff_t>(at));
    plain_stamps_[index] = stamp;
    play_.plain(stamp, index);
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
    uint32_t plain = 0;
    for (const std::string &one : play_.seen) {
      unsigned thread, epoch, domain, index;
      if (std::sscanf(one.c_str(), "end %u.%u", &thread, &epoch) == 2) {
        CHECK_EQ(epoch_of[thread], epoch);
        ++epoch_of[thread];
        ended.emplace(thread, epoch);
      } else if (std::sscanf(one.c_str(), "plain.%u", &index) == 1) {
        CHECK_EQ(index, plain);
        ++plain;
        for (const Program &program : programs_)
          if (program.dispatch <= plain_stamps_.at(index)) CHECK(ended.count({program.thread, program.epoch}) == 1);
      } else if (std::sscanf(one.c_str(), "u%u.%u.%u.%u", &thread, &epoch, &domain, &index) == 4) {
        CHECK(ended.count({thread, epoch}) == 0);
        ++unordered[{thread, epoch}];
      } else {
        CHECK_EQ(std::sscanf(one.c_str(), "%u.%u.%u.%u", &thread, &epoch, &domain, &index), 4);
        CHECK_EQ(epoch_of[thread], epoch);
        left[{thread, epoch}][domain].push_back(index);
      }
    }
    CHECK_EQ(plain, plain_total_);
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
  uint32_t plain_total_ = 0;
  uint32_t plain_next_ = 0;
  std::vector<std::pair<uint32_t, uint32_t>> plain_waiting_; // published, not delivered: index and stamp
  std::map<uint32_t, uint32_t> plain_stamps_;
};

// Every thread's records leave by epoch and index, none is lost or doubled, and every epoch ends, for any legal
// delivery.
void test_random_deliveries_leave_in_program_order() {
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    check::seed = seed;
    Model(seed).run();
  }
}

} // namespace
} // namespace effects

int main() {
  using namespace effects;
  RUN(test_records_in_order_leave_at_once);
  RUN(test_early_record_is_parked);
  RUN(test_later_epoch_waits_for_the_earlier);
  RUN(test_threads_are_independent);
  RUN(test_domains_count_for_themselves);
  RUN(test_close_waits_for_one_more_scan);
  RUN(test_close_before_its_records_keeps_the_epoch_open);
  RUN(test_unordered_record_leaves_on_arrival);
  RUN(test_empty_program_ends);
  RUN(test_failed_epoch_releases_what_came);
  RUN(test_epoch_may_fail_after_its_close);
  RUN(test_failure_is_told_once);
  RUN(test_second_devices_copies_are_dropped);
  RUN(test_gap_markers_are_stepped_over);
  RUN(test_gap_in_a_later_epoch);
  RUN(test_overlapping_gaps_count_once);
  RUN(test_gaps_from_one_index);
  RUN(test_index_wraps_around);
  RUN(test_epoch_wraps_around);
  RUN(test_plain_record_waits_for_earlier_dispatches);
  RUN(test_plain_records_are_in_order);
  RUN(test_releasable_foretells_accept);
  RUN(test_plain_index_wraps_around);
  RUN(test_held_stream_waits_for_its_resumption);
  RUN(test_unordered_record_passes_its_held_stream);
  RUN(test_held_epoch_does_not_end);
  RUN(test_only_one_stream);
  RUN(test_only_plain_records);
  RUN(test_nested_stream_does_not_wait_for_plain_records);
  RUN(test_awaited_plain_record_passes_held_streams);
  RUN(test_impatient_plain_records_pass_held_streams);
  RUN(test_held_plain_records);
  RUN(test_held_no_thread);
  RUN(test_held_plain_records_are_not_releasable);
  RUN(test_accept_says_whether_a_record_is_wanted);
  RUN(test_replicated_records_leave_once);
  RUN(test_failed_epochs_records_say_so);
  RUN(test_blocks_are_moved);
  RUN(test_parked_copy_of_a_block_is_freed);
  RUN(test_oldest_open_dispatch);
  RUN(test_random_deliveries_leave_in_program_order);
  return 0;
}
