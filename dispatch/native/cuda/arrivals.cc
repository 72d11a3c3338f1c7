#include "arrivals.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace effects::cuda {
namespace {

using std::chrono::microseconds;

// How long the thread pauses between two looks: not at all at first, then longer and longer, since a program may
// compute for long before its first record.
constexpr int kLooksWithoutPause = 200;
constexpr microseconds kLongestPause{200};
// How long nothing may come before the thread asks whether a stream has failed, which nothing else tells it.
constexpr microseconds kPatience{100000};

} // namespace

void Arrivals::add(const Driver &driver, Stream stream, Arrival &arrival) {
  std::unique_lock lock(mutex_);
  published_.wait(lock, [&] { return bytes_ == 0 || bytes_ + arrival.size <= kMost || stopped(); });
  if (!started_) {
    std::thread([this] { run(); }).detach();
    started_ = true;
  }
  driver_ = &driver;
  const size_t size = arrival.size;
  waiting_[stream].push_back(std::move(arrival));
  bytes_ += size;
  added_.notify_one();
}

void Arrivals::stop() {
  std::lock_guard lock(mutex_);
  stopped_.store(true, std::memory_order_relaxed);
  for (auto &[stream, queue] : waiting_)
    for (Arrival &arrival : queue) arrival.slot.abandon();
  waiting_.clear();
  added_.notify_all();
  published_.notify_all();
}

std::vector<Arrival> Arrivals::take_come() {
  std::vector<Arrival> come;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    OfStream &queue = it->second;
    while (!queue.empty() && queue.front().has_come()) {
      come.push_back(std::move(queue.front()));
      queue.pop_front();
    }
    it = queue.empty() ? waiting_.erase(it) : std::next(it);
  }
  return come;
}

void Arrivals::drop_failed() {
  std::vector<Stream> streams;
  const Driver *driver;
  {
    std::lock_guard lock(mutex_);
    for (const auto &[stream, queue] : waiting_) streams.push_back(stream);
    driver = driver_;
  }
  for (Stream stream : streams) {
    Result result = kSuccess;
    try {
      const InContextOf context(*driver, stream);
      result = driver->query.function(stream);
    } catch (const DriverError &) {
      result = kNotReady; // nothing is known of the stream; a failed one says so by the query
    }
    if (result == kSuccess || result == kNotReady) continue;
    std::lock_guard lock(mutex_);
    const auto it = waiting_.find(stream);
    if (it == waiting_.end()) continue;
    for (Arrival &arrival : it->second) {
      arrival.slot.abandon();
      bytes_ -= arrival.size;
    }
    waiting_.erase(it);
    published_.notify_all();
  }
}

void Arrivals::run() {
  using Clock = std::chrono::steady_clock;
  int looks = 0;
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (waiting_.empty()) {
      added_.wait(lock, [&] { return stopped() || !waiting_.empty(); });
      looks = 0;
      last = Clock::now();
    }
    if (stopped()) return;
    std::vector<Arrival> come = take_come();
    lock.unlock();
    if (!come.empty()) {
      size_t size = 0;
      for (Arrival &arrival : come) {
        arrival.publish(arrival.copies.data(), arrival.copies.size());
        size += arrival.size;
      }
      come.clear(); // the slots are free before somebody is told of the room
      looks = 0;
      last = Clock::now();
      lock.lock();
      bytes_ -= size;
      published_.notify_all();
      continue;
    }
    if (++looks > kLooksWithoutPause)
      std::this_thread::sleep_for(std::min(kLongestPause, microseconds(looks - kLooksWithoutPause)));
    else
      std::this_thread::yield();
    if (Clock::now() - last > kPatience) {
      drop_failed();
      last = Clock::now();
    }
    lock.lock();
  }
}

Arrivals &arrivals() {
  static auto *const instance = new Arrivals();
  return *instance;
}

} // namespace effects::cuda
