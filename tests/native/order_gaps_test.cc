// ReleaseOrder: dropped indices, indices that wrap around, and the memory of what is parked.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "order_play.h"

namespace effects::order_gaps_test {
namespace {

// Dropped indices are not waited for, at the start, in the middle and at the end.
TEST(test_gap_markers_are_stepped_over) {
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

// A gap of one device that covers what another device did publish, or had dropped too, does not push the order on
// twice.
TEST(test_overlapping_gaps_count_once) {
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
TEST(test_gaps_from_one_index) {
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
TEST(test_index_wraps_around) {
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
TEST(test_epoch_wraps_around) {
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

// A large record's memory is moved and never copied, whether the record leaves at once or has been parked; one that has
// no memory of its own is copied when it is parked, and leaves without a block.
TEST(test_blocks_are_moved) {
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
  order.open({kPlainThread, 0, 0}, 3);
  accept(Header(kPlainThread, 0, 0), true);
  CHECK_EQ(left.size(), size_t{6});
  CHECK_EQ(order.parked_bytes(), size_t{0});
}

// An early copy of a large record that is parked already is freed, and the first one's memory leaves.
TEST(test_parked_copy_of_a_block_is_freed) {
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

} // namespace
} // namespace effects::order_gaps_test
