#include "arrivals.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

namespace effects::cuda {
namespace {

using std::chrono::microseconds;

// The pause between two polls: none at first, then longer and longer, since a program may compute for long before its
// first record.
constexpr int kLooksWithoutPause = 200;
constexpr microseconds kLongestPause{200};
// The time without arrivals after which the thread polls the streams for failures, of which there is no other sign.
constexpr microseconds kPatience{100000};
// How long the end of the process waits for a record that is being published.
constexpr std::chrono::seconds kLongestWait{5};

} // namespace

void Arrivals::add(const Driver &driver, Stream stream, Arrival &arrival) {
  std::lock_guard lock(mutex_);
  if (stopped()) throw std::runtime_error("The process ends.");
  if (!started_) {
    std::thread([this] { run(); }).detach();
    started_ = true;
  }
  driver_ = &driver;
  arrival.number = launched_++;
  waiting_[stream].push_back(std::move(arrival));
  added_.notify_one();
}

void Arrivals::stop() {
  std::unique_lock lock(mutex_);
  stopped_.store(true, std::memory_order_relaxed);
  std::vector<Arrival> dropped; // destroyed with no lock held: which answers their calls
  for (auto &[stream, arrivals] : waiting_)
    for (Arrival &arrival : arrivals) {
      arrival.slot.abandon();
      dropped.push_back(std::move(arrival));
    }
  waiting_.clear();
  added_.notify_all();
  published_.wait_for(lock, kLongestWait, [&] { return !publishing_; });
  lock.unlock();
}

bool Arrivals::any() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto &each) { return !each.second.empty(); });
}

// A program may have several streams, one waiting for another. With one look at each stream:
//   1. The thread looks at stream A: no arrival.
//   2. A's record arrives, and then B's, which waited for it.
//   3. The thread looks at B, and publishes B's record before A's: the program's end, perhaps.
// So it looks again for launches before the newest arrival, until it finds none.
std::vector<Arrival> Arrivals::take_come() {
  std::vector<Arrival> come;
  uint64_t newest = ~uint64_t{0};
  const auto look = [&] {
    const size_t before = come.size();
    for (auto &[stream, arrivals] : waiting_)
      while (!arrivals.empty() && arrivals.front().number < newest && arrivals.front().has_come()) {
        come.push_back(std::move(arrivals.front()));
        arrivals.pop_front();
      }
    return come.size() != before;
  };
  const auto by_number = [](const Arrival &a, const Arrival &b) { return a.number < b.number; };
  if (!look()) return come;
  newest = std::max_element(come.begin(), come.end(), by_number)->number;
  while (look()) {
  }
  std::sort(come.begin(), come.end(), by_number);
  return come;
}

void Arrivals::drop_failed() {
  std::vector<Stream> asked;
  const Driver *driver;
  {
    std::lock_guard lock(mutex_);
    for (const auto &[stream, arrivals] : waiting_)
      if (!arrivals.empty()) asked.push_back(stream);
    driver = driver_;
  }
  for (Stream stream : asked) {
    bool has_failed = false;
    try {
      const InContextOf context(*driver, stream);
      CheckStream(*driver, stream);
    } catch (const DriverError &) { // a failed device may already fail at the context
      has_failed = true;
    }
    if (!has_failed) continue;
    std::deque<Arrival> dropped; // destroyed with no lock held
    std::lock_guard lock(mutex_);
    dropped.swap(waiting_[stream]);
    for (Arrival &arrival : dropped) arrival.slot.abandon();
  }
}

void Arrivals::run() {
  using Clock = std::chrono::steady_clock;
  int looks = 0;
  Clock::time_point last = Clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!any()) {
      added_.wait(lock, [&] { return stopped() || any(); });
      looks = 0;
      last = Clock::now();
    }
    if (stopped()) return;
    std::vector<Arrival> come = take_come();
    publishing_ = !come.empty();
    lock.unlock();
    if (!come.empty()) {
      for (Arrival &arrival : come) {
        arrival.publish(arrival.copies.data(), arrival.copies.size());
        arrival = {}; // frees its slot: a launch that waits for room continues
      }
      looks = 0;
      last = Clock::now();
      lock.lock();
      publishing_ = false;
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
