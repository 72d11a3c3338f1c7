// A machine with GPUs that are not there: their memory is the host's, and their streams are threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace simulated {

using Address = uint64_t;

// Ends the process, and says why: XLA or a handler has done what a GPU would not have endured.
[[noreturn]] void Fail(const std::string &what);

int NumDevices();

// The memory of all devices. It is mapped twice. At its addresses nothing can be read, so that a host which takes one
// for a pointer faults; kernels and copies reach it by Real().
class Memory {
public:
  static constexpr size_t kOfDevice = size_t{1} << 29;

  Memory();

  // Addresses for so many bytes, or 0. They have no memory yet.
  Address reserve(size_t size);
  void give_back(Address address, size_t size);
  // From now on it is memory of the device. Returns false if that has no more.
  bool map(Address address, size_t size, int device);
  void unmap(Address address);
  size_t used(int device);

  // Memory of the host's that devices may reach.
  void pin(const void *data, size_t size);
  void unpin(const void *data);

  struct Range {
    Address first = 0;
    size_t size = 0;
    int device = -1; // -1: the host
  };
  // The range of this address; empty if there is none.
  Range find(Address address);

  // Where the bytes are that a kernel reaches here. Ends the process if it may not. A copy may reach memory of the
  // host's that is not pinned.
  void *real(Address address, size_t size, bool is_copy = false);

private:
  static constexpr size_t kAll = size_t{1} << 36;
  std::byte *shown_, *real_;
  std::mutex mutex_; // guards all below
  size_t next_ = size_t{1} << 21;
  std::map<size_t, std::vector<Address>> free_;
  std::map<Address, Range> ranges_;
  std::map<int, size_t> used_;
};
Memory &memory();

// Work that is done in order, by a thread of its own, at some time.
class Stream {
public:
  explicit Stream(int device);
  Stream(const Stream &) = delete;

  void put(std::function<void()> work);
  bool is_idle();
  void synchronize();

  const int device;

private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  uint64_t put_ = 0, done_ = 0;
};
Stream &NewStream(int device);
// All streams of the device, or of all devices for -1.
void Synchronize(int device);

// What a graph asks at a branch, and in each turn of a loop. Kernels set it. Without a value for each launch it is
// anything at first.
struct Condition {
  unsigned value;
  std::optional<unsigned> at_first;
};

struct Dim {
  uint32_t x, y, z;
};

} // namespace simulated
