#include "launch.h"

#include <chrono>
#include <utility>

#include "../wire.h"

namespace effects::cuda {
namespace {

// How often a thread that waits for an answer looks whether the stream has failed, which nothing else tells it.
constexpr std::chrono::milliseconds kLook{100};

// What a host function has.
struct Launched {
  Slot slot;
  std::vector<Span> copies;
  Publish publish;
};

void Run(void *data) {
  const std::unique_ptr<Launched> launched(static_cast<Launched *>(data));
  if (launched->publish) launched->publish(launched->copies.data(), launched->copies.size());
}

// Puts the host function behind the copies from or to the slot. `launched` is the function's from then on.
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

} // namespace

void Launch(const Driver &driver, Stream stream, const Span *buffers, size_t count, Publish publish) {
  size_t size = 0;
  for (size_t i = 0; i < count; ++i) size += RoundUp8(buffers[i].size);
  auto launched = std::make_unique<Launched>();
  launched->publish = std::move(publish);
  launched->copies.reserve(count);
  if (size != 0) launched->slot = pinned_pool().take(driver, size);
  std::byte *to = launched->slot.data();
  for (size_t i = 0; i < count; ++i) {
    launched->copies.push_back({to, buffers[i].size});
    if (buffers[i].size == 0) continue;
    try {
      driver.copy_to_host(to, AddressOf(buffers[i].data), buffers[i].size, stream);
    } catch (...) {
      launched->slot.abandon(); // those before may be under way
      throw;
    }
    to += RoundUp8(buffers[i].size);
  }
  LaunchFunction(driver, stream, std::move(launched));
}

Answered::Answered(const Driver &driver, std::vector<Out> results) : results_(std::move(results)) {
  size_t size = 0;
  for (const Out &result : results_) size += RoundUp8(result.size);
  if (size != 0) slot_ = pinned_pool().take(driver, size);
  std::byte *at = slot_.data();
  for (const Out &result : results_) {
    outs_.push_back({at, result.size});
    at += RoundUp8(result.size);
  }
}

void Answered::answer(const Answer &answer) {
  std::lock_guard lock(mutex_);
  error_ = CopyResults(answer, outs_);
  done_ = true;
  answered_.notify_all();
}

std::string Answered::wait(const Driver &driver, Stream stream) {
  std::unique_lock lock(mutex_);
  while (!answered_.wait_for(lock, kLook, [&] { return done_; })) {
    lock.unlock();
    const Result result = driver.query.function(stream);
    if (result != kSuccess && result != kNotReady) throw DriverError(Describe(driver.query.name, result));
    lock.lock();
  }
  return error_;
}

void Answered::launch_results(const Driver &driver, Stream stream) {
  if (slot_.data() == nullptr) return;
  auto launched = std::make_unique<Launched>();
  launched->slot = std::move(slot_);
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i].size == 0) continue;
    try {
      driver.copy_to_device(AddressOf(results_[i].data), outs_[i].data, results_[i].size, stream);
    } catch (...) {
      launched->slot.abandon();
      throw;
    }
  }
  LaunchFunction(driver, stream, std::move(launched));
}

} // namespace effects::cuda
