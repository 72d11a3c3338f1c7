// Memory of large payloads: used again while it is warm, bounded, and given back.
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "dispatch/native/producer/bytes.h"

namespace effects::blocks_test {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRoom = 4096; // what blocks need beside their bytes, at most

// A large block that is freed is the next one's memory, if that is about as large.
TEST(test_freed_block_is_used_again) {
  Block block = AllocateBlock(64 * kMiB);
  std::byte *const memory = block.get();
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % 64, uintptr_t{0});
  std::memset(memory, 1, 64 * kMiB);
  block.reset();
  CHECK_EQ(CountLargeBlocks().used, size_t{0});
  block = AllocateBlock(60 * kMiB);
  CHECK(block.get() == memory);
  const Block other = AllocateBlock(64 * kMiB), smaller = AllocateBlock(5 * kMiB);
  CHECK(other.get() != memory && smaller.get() != memory);
}

// Small blocks have nothing to do with it.
TEST(test_small_blocks_are_not_kept) {
  for (const size_t size : {size_t{0}, size_t{1}, 4 * kMiB - 1}) {
    const Block block = AllocateBlock(size);
    CHECK(block != nullptr);
    CHECK_EQ(CountLargeBlocks().used, size_t{0});
  }
  CHECK_EQ(CountLargeBlocks().kept, size_t{0});
}

// What is kept has a bound, and does not come on top of a larger allocation.
TEST(test_kept_memory_is_bounded) {
  std::vector<Block> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(AllocateBlock(64 * kMiB));
  CHECK(CountLargeBlocks().used >= 20 * 64 * kMiB);
  blocks.clear();
  CHECK(CountLargeBlocks().kept <= 512 * kMiB + kRoom && CountLargeBlocks().kept >= 256 * kMiB);
  const Block large = AllocateBlock(1024 * kMiB);
  CHECK_EQ(CountLargeBlocks().kept, size_t{0});
}

// Memory that has not been used for a while goes back.
TEST(test_unused_memory_is_given_back) {
  AllocateBlock(8 * kMiB).reset();
  GiveBackBlocks(milliseconds(1000000));
  CHECK(CountLargeBlocks().kept >= 8 * kMiB);
  GiveBackBlocks(milliseconds(0));
  CHECK_EQ(CountLargeBlocks().kept, size_t{0});
}

// Threads that allocate and free, in others' hands too, never share a block.
TEST(test_threads_never_share_a_block) {
  std::vector<std::thread> threads;
  for (uint64_t number = 1; number <= 4; ++number)
    threads.emplace_back([number] {
      check::Random random(number);
      for (int i = 0; i < 40; ++i) {
        const size_t size = (4 + random.below(8)) * kMiB;
        const Block block = AllocateBlock(size);
        for (size_t at = 0; at < size; at += kMiB) std::memcpy(block.get() + at, &number, sizeof number);
        std::this_thread::yield();
        for (size_t at = 0; at < size; at += kMiB) CHECK(std::memcmp(block.get() + at, &number, sizeof number) == 0);
      }
    });
  for (std::thread &thread : threads) thread.join();
  CHECK_EQ(CountLargeBlocks().used, size_t{0});
}

} // namespace
} // namespace effects::blocks_test
