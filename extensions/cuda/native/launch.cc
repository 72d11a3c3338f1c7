#include "launch.h"

#include <atomic>
#include <new>
#include <utility>

#include "arrivals.h"
#include "dispatch/native/wire.h"
#include "kernel.h"

namespace effects::cuda {
namespace {

// The argument of a host function.
struct Launched {
  Slot slot; // empty if a later host function frees it
  std::vector<Span> copies;
  Publish publish;
};

void Run(void *data) {
  const std::unique_ptr<Launched> launched(static_cast<Launched *>(data));
  if (launched->publish) launched->publish(launched->copies.data(), launched->copies.size());
}

template <typename Buffers>
size_t SizeOf(const Buffers &buffers, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += RoundUp8(buffers[i].size);
  return size;
}

// Launches the host function after the copies from or to the slot. The function owns `launched` from then on.
void LaunchFunction(const Driver &driver, Stream stream, std::unique_ptr<Launched> launched) {
  try {
    driver.launch_host_function(stream, &Run, launched.get());
  } catch (...) {
    launched->slot.abandon();
    throw;
  }
  launched.release();
}

Address AddressOf(const void *data) { return reinterpret_cast<uintptr_t>(data); }

// Launches copies of the buffers to `to`.
std::vector<Span> CopyToHost(const Driver &driver, Stream stream, const Span *buffers, size_t count, std::byte *to) {
  std::vector<Span> copies;
  copies.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    copies.push_back({to, buffers[i].size});
    if (buffers[i].size != 0) driver.copy_to_host(to, AddressOf(buffers[i].data), buffers[i].size, stream);
    to += RoundUp8(buffers[i].size);
  }
  return copies;
}

// The places of results in a slot, from `at` on.
std::vector<Out> PlacesOf(const std::vector<Out> &results, std::byte *at) {
  std::vector<Out> places;
  places.reserve(results.size());
  for (const Out &result : results) {
    places.push_back({at, result.size});
    at += RoundUp8(result.size);
  }
  return places;
}

// Launches copies from there to the device.
void CopyToDevice(const Driver &driver, Stream stream, const std::vector<Out> &places,
                  const std::vector<Out> &results) {
  for (size_t i = 0; i < results.size(); ++i)
    if (results[i].size != 0)
      driver.copy_to_device(AddressOf(results[i].data), places[i].data, results[i].size, stream);
}

// The most bytes that the kernel copies; the driver copies larger buffers before it.
constexpr size_t kMostByKernel = size_t{1} << 14;
constexpr size_t kFlagSize = 64;

void LaunchByKernel(const Driver &driver, Stream stream, KernelFunction kernel, const Span *buffers, size_t count,
                    Publish publish) {
  Arrival arrival;
  arrival.publish = std::move(publish);
  arrival.copies.reserve(count);
  arrival.slot = pinned_pool().take(driver, kFlagSize + SizeOf(buffers, count), stream);
  std::byte *to = arrival.slot.data();
  new (to) std::atomic<uint32_t>(0);
  KernelWork work;
  work.flag = AddressOf(to);
  to += kFlagSize;
  try {
    for (size_t i = 0; i < count; ++i) {
      const Span &from = buffers[i];
      arrival.copies.push_back({to, from.size});
      if (from.size > kMostByKernel || (from.size != 0 && work.num_copies == KernelWork::kMostCopies))
        driver.copy_to_host(to, AddressOf(from.data), from.size, stream);
      else if (from.size != 0)
        work.copies[work.num_copies++] = {AddressOf(from.data), AddressOf(to), static_cast<uint32_t>(from.size), 0};
      to += RoundUp8(from.size);
    }
    LaunchKernel(driver, stream, kernel, work);
    arrivals().add(driver, stream, arrival);
  } catch (...) {
    arrival.slot.abandon(); // some may be under way
    throw;
  }
}

// Null: launches are by host functions.
KernelFunction KernelIfUsed(const Driver &driver, Stream stream) {
  return arrivals().stopped() ? nullptr : KernelOf(driver, stream);
}

} // namespace

void PrepareLaunch(const Driver &driver, Stream stream, const Span *buffers, size_t count) {
  const size_t flag = KernelIfUsed(driver, stream) != nullptr ? kFlagSize : 0;
  if (const size_t size = flag + SizeOf(buffers, count); size != 0) pinned_pool().take(driver, size);
}

void Launch(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish) {
  if (KernelFunction kernel = KernelIfUsed(driver, stream))
    return LaunchByKernel(driver, stream, kernel, buffers, count, std::move(publish));
  LaunchByHostFunction(driver, stream, buffers, count, std::move(publish));
}

void LaunchByHostFunction(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish) {
  auto launched = std::make_unique<Launched>();
  launched->publish = std::move(publish);
  if (const size_t size = SizeOf(buffers, count); size != 0) launched->slot = pinned_pool().take(driver, size, stream);
  try {
    launched->copies = CopyToHost(driver, stream, buffers, count, launched->slot.data());
  } catch (...) {
    launched->slot.abandon(); // some may be under way
    throw;
  }
  LaunchFunction(driver, stream, std::move(launched));
}

void LaunchWithResults(const Driver &driver, Stream stream, const Span *buffers, size_t count,
                       const std::vector<Out> &results, Compute compute) {
  const size_t size = SizeOf(buffers, count);
  auto launched = std::make_unique<Launched>(), behind = std::make_unique<Launched>();
  behind->slot = pinned_pool().take(driver, size + SizeOf(results, results.size()), stream);
  std::byte *const slot = behind->slot.data();
  const std::vector<Out> places = PlacesOf(results, slot + size);
  launched->publish = [compute = std::move(compute), places](Span *operands, size_t num_operands) {
    compute(operands, num_operands, places);
  };
  try {
    launched->copies = CopyToHost(driver, stream, buffers, count, slot);
    LaunchFunction(driver, stream, std::move(launched));
    CopyToDevice(driver, stream, places, results);
  } catch (...) {
    behind->slot.abandon();
    throw;
  }
  LaunchFunction(driver, stream, std::move(behind));
}

Answered::Answered(const Driver &driver, std::vector<Out> results) : results_(std::move(results)) {
  if (const size_t size = SizeOf(results_, results_.size()); size != 0) slot_ = pinned_pool().take(driver, size);
  outs_ = PlacesOf(results_, slot_.data());
}

void Answered::take(const Answer &answer) {
  std::lock_guard lock(mutex_);
  error_ = CopyResults(answer, outs_);
}

void Answered::go_on(const std::string &failed) {
  std::lock_guard lock(mutex_);
  if (error_.empty()) error_ = failed;
  done_ = true;
  answered_.notify_all();
}

void Answered::give_up() {
  std::lock_guard lock(mutex_);
  if (done_) return;
  error_ = "A callback with results did not run. Its device has failed, or the process ends.";
  done_ = true;
  answered_.notify_all();
}

std::string Answered::wait(const Driver &driver, Stream stream) {
  std::unique_lock lock(mutex_);
  while (!answered_.wait_for(lock, kLook, [&] { return done_; })) {
    lock.unlock();
    CheckStream(driver, stream);
    lock.lock();
  }
  return error_;
}

void Answered::launch_results(const Driver &driver, Stream stream) {
  if (slot_.data() == nullptr) return;
  auto launched = std::make_unique<Launched>();
  launched->slot = std::move(slot_);
  try {
    CopyToDevice(driver, stream, outs_, results_);
  } catch (...) {
    launched->slot.abandon();
    throw;
  }
  LaunchFunction(driver, stream, std::move(launched));
}

} // namespace effects::cuda
