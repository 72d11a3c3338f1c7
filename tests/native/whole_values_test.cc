// Values whose shards several devices have: every byte comes to its place, and one device gets the whole.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "dispatch/native/producer/whole_values.h"

namespace effects::whole_values_test {
namespace {

using check::MakeToken;
using check::Random;

// An array that is cut into equal pieces along its axes, the last of which may be smaller, or empty.
struct Cut {
  std::vector<int32_t> whole, pieces;
  std::vector<uint32_t> values;

  size_t count() const { return std::accumulate(pieces.begin(), pieces.end(), size_t{1}, std::multiplies<>()); }
};

// What one device has of it, with padding behind the end of the whole.
struct Piece {
  std::vector<int64_t> sizes;
  std::vector<int32_t> numbers;
  std::vector<uint32_t> values;

  Piece(const Cut &cut, size_t number, bool copied) {
    std::vector<int32_t> at;
    bool empty = false;
    for (size_t axis = cut.whole.size(); axis-- > 0; number /= static_cast<size_t>(cut.pieces[axis]))
      at.insert(at.begin(), static_cast<int32_t>(number % static_cast<size_t>(cut.pieces[axis])));
    for (size_t axis = 0; axis < cut.whole.size(); ++axis) {
      const int32_t size = (cut.whole[axis] + cut.pieces[axis] - 1) / cut.pieces[axis];
      const int32_t begin = std::min(cut.whole[axis], at[axis] * size);
      sizes.push_back(size);
      numbers.insert(numbers.end(), {begin, std::min(cut.whole[axis], begin + size), cut.whole[axis]});
      empty = empty || begin == cut.whole[axis];
    }
    numbers.insert(numbers.begin(), copied && !empty);
    const size_t count = std::accumulate(sizes.begin(), sizes.end(), size_t{1}, std::multiplies<>());
    for (size_t i = 0; i < count; ++i) {
      size_t left = i, place = 0, step = 1;
      bool inside = true;
      for (size_t axis = sizes.size(); axis-- > 0;) {
        const size_t in_piece = left % static_cast<size_t>(sizes[axis]);
        left /= static_cast<size_t>(sizes[axis]);
        const size_t in_whole = static_cast<size_t>(numbers[1 + 3 * axis]) + in_piece;
        inside = inside && in_whole < static_cast<size_t>(cut.whole[axis]);
        place += in_whole * step;
        step *= static_cast<size_t>(cut.whole[axis]);
      }
      values.push_back(inside ? cut.values[place] : 0xDEAD);
    }
  }
  bool copies() const { return numbers[0] != 0; }
  Shard shard() const {
    return {reinterpret_cast<const std::byte *>(values.data()), sizeof(uint32_t), sizes.size(), sizes.data(),
            numbers.data()};
  }
};

// Arrays of random shapes, cut in random ways; devices come at one time and each copies what it is the first to have.
TEST(test_every_shard_comes_to_its_place) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    check::seed = static_cast<uint64_t>(round);
    constexpr size_t kDevices = 4;
    std::vector<Cut> cuts(1 + random.below(3));
    for (Cut &cut : cuts) {
      size_t left = kDevices;
      for (size_t rank = random.below(4); rank > 0; --rank) {
        cut.whole.push_back(static_cast<int32_t>(1 + random.below(7)));
        cut.pieces.push_back(left > 1 && random.one_in(2) ? 2 : 1);
        left /= static_cast<size_t>(cut.pieces.back());
      }
      const size_t count = std::accumulate(cut.whole.begin(), cut.whole.end(), size_t{1}, std::multiplies<>());
      for (size_t i = 0; i < count; ++i) cut.values.push_back(static_cast<uint32_t>(random.next()));
    }
    std::vector<std::vector<Piece>> pieces(kDevices);
    uint32_t devices = 0;
    for (size_t device = 0; device < kDevices; ++device) {
      bool copies = false;
      for (const Cut &cut : cuts) {
        pieces[device].emplace_back(cut, device % cut.count(), device < cut.count());
        copies = copies || pieces[device].back().copies();
      }
      devices += copies;
    }
    WholeValues values;
    std::atomic<int> got{0};
    std::vector<std::thread> threads;
    for (const std::vector<Piece> &mine : pieces) {
      if (std::none_of(mine.begin(), mine.end(), [](const Piece &piece) { return piece.copies(); })) continue;
      threads.emplace_back([&] {
        std::vector<Shard> shards;
        for (const Piece &piece : mine) shards.push_back(piece.shard());
        WholePayload whole = values.add(MakeToken(1, 0, 5, 9), shards, devices, /*may_wait=*/true);
        if (!whole) return;
        ++got;
        const std::byte *at = whole.block.get();
        for (const Cut &cut : cuts) {
          CHECK(std::memcmp(at, cut.values.data(), cut.values.size() * sizeof(uint32_t)) == 0);
          at += RoundUp8(cut.values.size() * sizeof(uint32_t));
        }
        CHECK_EQ(static_cast<size_t>(at - whole.block.get()), whole.size);
      });
    }
    for (std::thread &thread : threads) thread.join();
    CHECK_EQ(got.load(), 1);
    CHECK_EQ(values.incomplete(), size_t{0});
  }
}

// Half of a value of `size` numbers; device 0 has the first.
Piece Half(const Cut &cut, size_t device) { return Piece(cut, device, true); }
Cut Numbers(int32_t size) {
  Cut cut{{size}, {2}, std::vector<uint32_t>(static_cast<size_t>(size))};
  std::iota(cut.values.begin(), cut.values.end(), 0u);
  return cut;
}

// One device may be many records ahead; each record is of its own place.
TEST(test_devices_come_apart) {
  const Cut cut = Numbers(6);
  const Piece first = Half(cut, 0), second = Half(cut, 1);
  WholeValues values;
  for (uint32_t index = 0; index < 10; ++index) CHECK(!values.add(MakeToken(1, 0, 0, index), {first.shard()}, 2, true));
  CHECK(!values.add(MakeToken(1, 1, 0, 3), {first.shard()}, 2, true)); // another domain
  CHECK(!values.add(MakeToken(1, 0, 1, 3), {first.shard()}, 2, true)); // another program
  CHECK_EQ(values.incomplete(), size_t{12});
  for (uint32_t index = 0; index < 10; ++index) {
    const WholePayload whole = values.add(MakeToken(1, 0, 0, index), {second.shard()}, 2, true);
    CHECK(whole && std::memcmp(whole.block.get(), cut.values.data(), 24) == 0);
  }
  CHECK_EQ(values.incomplete(), size_t{2});
}

// A program that fails leaves nothing behind, and no other loses anything by that.
TEST(test_failed_program_is_forgotten) {
  const Cut cut = Numbers(6);
  const Piece first = Half(cut, 0), second = Half(cut, 1);
  WholeValues values;
  for (uint32_t epoch = 0; epoch < 2; ++epoch) CHECK(!values.add(MakeToken(1, 0, epoch, 0), {first.shard()}, 2, true));
  values.forget(1, 0);
  values.forget(1, 7);
  CHECK_EQ(values.incomplete(), size_t{1});
  CHECK(bool(values.add(MakeToken(1, 0, 1, 0), {second.shard()}, 2, true)));
}

// A device that is far ahead waits for the others, and goes on when they have come.
TEST(test_device_that_is_far_ahead_waits) {
  const Cut cut = Numbers(1 << 15);
  WholeValues values(2 * sizeof(uint32_t) << 15); // room for two
  std::atomic<int> got{0};
  const auto come = [&](size_t device) {
    const Piece half(cut, device, true);
    for (uint32_t index = 0; index < 4; ++index)
      got += bool(values.add(MakeToken(1, 0, 0, index), {half.shard()}, 2, true));
  };
  std::thread first(come, 0), second(come, 1);
  first.join();
  second.join();
  CHECK_EQ(got.load(), 4);
  CHECK_EQ(values.incomplete(), size_t{0});
}

// If the others do not come, it goes on all the same: they may be waiting for it.
TEST(test_device_that_is_far_ahead_does_not_wait_for_ever) {
  const Cut cut = Numbers(1 << 15);
  const Piece first = Half(cut, 0);
  WholeValues values(sizeof(uint32_t) << 15); // room for one
  for (uint32_t index = 0; index < 2; ++index) CHECK(!values.add(MakeToken(1, 0, 0, index), {first.shard()}, 2, true));
  CHECK_EQ(values.incomplete(), size_t{2});
}

} // namespace
} // namespace effects::whole_values_test
