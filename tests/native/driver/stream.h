// What the stand-in for the driver is made of: streams, and what a launch of the library's kernel does.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

namespace {

inline constexpr int kNoError = 0;

// What a launch of the library's kernel does, as its text reads it.
struct KernelWork {
  uint64_t flag;
  uint32_t num_copies, unused;
  struct {
    uint64_t from, to;
    uint32_t size, unused;
  } copies[8];
};

struct Range {
  std::byte *begin;
  size_t size;
  bool overlaps(const Range &other) const { return begin < other.begin + other.size && other.begin < begin + size; }
  bool holds(const Range &other) const { return begin <= other.begin && other.begin + other.size <= begin + size; }
};

struct Stream {
  uintptr_t context; // its own: a number that no other stream has had
  std::thread thread;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::vector<Range> in_use;       // by copies behind which neither a host function nor the kernel has run
  std::vector<Range> not_launched; // those of them that have neither behind them yet
  void release(const std::vector<Range> &ranges) {
    for (const Range &range : ranges)
      for (auto it = in_use.begin(); it != in_use.end(); ++it)
        if (it->begin == range.begin && it->size == range.size) {
          in_use.erase(it);
          break;
        }
  }
  bool held = false, busy = false, ending = false;
  int error = kNoError;
};

} // namespace
