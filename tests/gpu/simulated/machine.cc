#include "machine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

namespace simulated {
namespace {

// Never destroyed: streams wait for more until the process is over.
auto &streams_mutex = *new std::mutex;
auto &streams = *new std::vector<Stream *>; // guarded by that

} // namespace

void Fail(const std::string &what) {
  std::fprintf(stderr, "The simulated GPU: %s\n", what.c_str());
  std::abort();
}

int NumDevices() {
  static const int count = [] {
    const char *const given = std::getenv("SIMULATED_GPUS");
    return given == nullptr ? 1 : std::atoi(given);
  }();
  return count;
}

Memory::Memory() {
  const int file = memfd_create("simulated", 0);
  if (file < 0 || ftruncate(file, kAll) != 0) Fail("There is no memory.");
  const auto map = [&](int protection) {
    void *const at = mmap(nullptr, kAll, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) Fail("There is no room for its memory.");
    return static_cast<std::byte *>(at);
  };
  shown_ = map(PROT_NONE);
  real_ = map(PROT_READ | PROT_WRITE);
  close(file);
}

Address Memory::reserve(size_t size) {
  std::lock_guard lock(mutex_);
  if (auto &free = free_[size]; !free.empty()) {
    const Address address = free.back();
    free.pop_back();
    return address;
  }
  constexpr size_t kPage = size_t{1} << 21;
  const size_t rounded = (size + kPage - 1) / kPage * kPage;
  if (next_ + rounded > kAll) return 0;
  next_ += rounded;
  return reinterpret_cast<Address>(shown_ + (next_ - rounded));
}

void Memory::give_back(Address address, size_t size) {
  std::lock_guard lock(mutex_);
  free_[size].push_back(address);
}

bool Memory::map(Address address, size_t size, int device) {
  std::lock_guard lock(mutex_);
  if (used_[device] + size > kOfDevice) return false;
  used_[device] += size;
  ranges_[address] = {address, size, device};
  return true;
}

void Memory::unmap(Address address) {
  std::lock_guard lock(mutex_);
  const auto it = ranges_.find(address);
  if (it == ranges_.end()) Fail("Memory is given back twice, or was never there.");
  used_[it->second.device] -= it->second.size;
  ranges_.erase(it);
}

size_t Memory::used(int device) {
  std::lock_guard lock(mutex_);
  return used_[device];
}

void Memory::pin(const void *data, size_t size) {
  std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<Address>(data);
  ranges_[address] = {address, size, -1};
}

void Memory::unpin(const void *data) {
  std::lock_guard lock(mutex_);
  ranges_.erase(reinterpret_cast<Address>(data));
}

Memory::Range Memory::find(Address address) {
  std::lock_guard lock(mutex_);
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return {};
  --it;
  return address < it->second.first + it->second.size ? it->second : Range{};
}

void *Memory::real(Address address, size_t size, bool is_copy) {
  const size_t offset = address - reinterpret_cast<Address>(shown_);
  const bool is_of_device = offset < kAll;
  if (size != 0 && (is_of_device || !is_copy)) { // nothing may be copied from and to nowhere
    const Range range = find(address);
    if (range.size == 0 || address + size > range.first + range.size)
      Fail("A kernel or a copy reaches memory that is neither a device's nor pinned, at " + std::to_string(address) +
           ".");
  }
  return is_of_device ? real_ + offset : reinterpret_cast<void *>(address);
}

Memory &memory() {
  static auto *const instance = new Memory;
  return *instance;
}

Stream::Stream(int device) : device(device) {
  std::thread([this] { run(); }).detach();
}

void Stream::put(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  ++put_;
  changed_.notify_all();
}

bool Stream::is_idle() {
  std::lock_guard lock(mutex_);
  return done_ == put_;
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&, until = put_] { return done_ >= until; });
}

void Stream::run() {
  std::minstd_rand random(std::random_device{}());
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !queue_.empty(); });
    {
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      // A device lags behind the host now and then.
      if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      work();
    }
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Stream &NewStream(int device) {
  auto *const stream = new Stream(device);
  std::lock_guard lock(streams_mutex);
  streams.push_back(stream);
  return *stream;
}

void Synchronize(int device) {
  std::vector<Stream *> all;
  {
    std::lock_guard lock(streams_mutex);
    all = streams;
  }
  for (Stream *stream : all)
    if (device < 0 || stream->device == device) stream->synchronize();
}

} // namespace simulated
