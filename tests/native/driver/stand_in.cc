#include "stand_in.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stream.h"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidImage = 200, kInvalidContext = 201, kNotFound = 500,
              kNotReady = 600, kNotPermitted = 800;
constexpr uint64_t kDeviceMemory = uint64_t{1} << 60; // addresses of devices begin here

// All that is below is guarded by the mutex, and never destroyed: streams wait for more until the process is over.
auto &mutex = *new std::mutex;
auto &streams = *new std::map<Stream *, std::unique_ptr<Stream>>;
auto &device_memory = *new std::map<uint64_t, std::vector<std::byte>>;
uint64_t next_address = kDeviceMemory;
auto &pinned = *new std::map<std::byte *, size_t>;
auto &failing = *new std::map<std::string, std::pair<int, int>>;
auto &calls = *new std::map<std::string, int>;
auto &complaints = *new std::string, &shown = *new std::string;
int version = 12040;

thread_local std::vector<void *> contexts;
thread_local bool in_host_function = false;

void Complain(const std::string &text) { complaints += text + "\n"; }

// Of each call, with the lock held. Returns the error that it is to give.
int Begin(const char *function, bool needs_context = true) {
  ++calls[function];
  if (in_host_function) {
    Complain(std::string("A host function called ") + function + ".");
    return kNotPermitted;
  }
  if (needs_context && contexts.empty()) {
    Complain(std::string("No context was there when ") + function + " was called.");
    return kInvalidContext;
  }
  const auto it = failing.find(function);
  if (it == failing.end()) return kSuccess;
  if (it->second.first-- > 0) return kSuccess;
  const int error = it->second.second;
  failing.erase(it);
  return error;
}

std::byte *Find(uint64_t address, size_t size) {
  auto it = device_memory.upper_bound(address);
  if (address < kDeviceMemory) return reinterpret_cast<std::byte *>(address); // a host's, which stands for a device's
  if (it == device_memory.begin()) return nullptr;
  --it;
  const uint64_t offset = address - it->first;
  return offset + size <= it->second.size() ? it->second.data() + offset : nullptr;
}

void RunStream(Stream *stream) {
  std::unique_lock lock(mutex);
  for (;;) {
    stream->changed.wait(lock, [&] { return (!stream->queue.empty() && !stream->held) || stream->ending; });
    if (stream->queue.empty()) return;
    if (stream->held && !stream->ending) continue;
    std::function<void()> next = std::move(stream->queue.front());
    stream->queue.pop_front();
    stream->busy = true;
    lock.unlock();
    next();
    next = nullptr;
    lock.lock();
    stream->busy = false;
    stream->changed.notify_all();
  }
}

// With the lock held.
int Enqueue(void *handle, std::function<void()> what) {
  auto *const stream = static_cast<Stream *>(handle);
  if (stream->error != kSuccess) return stream->error;
  stream->queue.push_back(std::move(what));
  stream->changed.notify_all();
  return kSuccess;
}

int Copy(const char *function, void *host, uint64_t address, size_t size, void *handle, bool to_host) {
  std::lock_guard lock(mutex);
  if (const int error = Begin(function)) return error;
  const Range range{static_cast<std::byte *>(host), size};
  const std::string name(function);
  if (size == 0) Complain(name + " copied nothing.");
  if (reinterpret_cast<uintptr_t>(host) % 8 != 0) Complain(name + " was given an operand that is not aligned.");
  bool is_pinned = false;
  for (const auto &[data, pinned_size] : pinned) is_pinned = is_pinned || Range{data, pinned_size}.holds(range);
  if (!is_pinned) Complain(name + " was given memory that is not pinned.");
  for (const auto &[stream, owned] : streams)
    for (const Range &used : stream->in_use)
      if (used.overlaps(range)) Complain(name + " was given memory that a launch still uses.");
  std::byte *const device = Find(address, size);
  if (device == nullptr) return kInvalidValue;
  if (const int error = Enqueue(handle, [=] {
        if (to_host)
          std::memcpy(host, device, size);
        else
          std::memcpy(device, host, size);
      }))
    return error;
  static_cast<Stream *>(handle)->in_use.push_back(range);
  static_cast<Stream *>(handle)->not_launched.push_back(range);
  return kSuccess;
}

} // namespace

extern "C" {

int cuDriverGetVersion(int *result) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuDriverGetVersion", false)) return error;
  *result = version;
  return kSuccess;
}

int cuGetErrorName(int error, const char **name) {
  std::lock_guard lock(mutex);
  *name = error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : nullptr;
  return *name == nullptr ? kInvalidValue : kSuccess;
}

int cuGetErrorString(int error, const char **text) {
  std::lock_guard lock(mutex);
  *text = error == 700 ? "an illegal memory access was encountered" : error == 2 ? "out of memory" : nullptr;
  return *text == nullptr ? kInvalidValue : kSuccess;
}

int cuStreamGetCtx(void *stream, void **context) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuStreamGetCtx", false)) return error;
  if (const int error = static_cast<Stream *>(stream)->error) return error; // as of all that is asked after a failure
  *context = reinterpret_cast<void *>(static_cast<Stream *>(stream)->context);
  return kSuccess;
}

int cuCtxPushCurrent_v2(void *context) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuCtxPushCurrent_v2", false)) return error;
  contexts.push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(void **context) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuCtxPopCurrent_v2")) return error;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

int cuMemHostAlloc(void **data, size_t size, unsigned flags) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuMemHostAlloc")) return error;
  if (flags != 3) Complain("cuMemHostAlloc was not asked for memory of all devices, which kernels reach.");
  *data = std::aligned_alloc(64, (size + 63) / 64 * 64);
  pinned[static_cast<std::byte *>(*data)] = size;
  return kSuccess;
}

int cuMemcpyDtoHAsync_v2(void *host, unsigned long long device, size_t size, void *stream) {
  return Copy("cuMemcpyDtoHAsync_v2", host, device, size, stream, true);
}

int cuMemcpyHtoDAsync_v2(unsigned long long device, const void *host, size_t size, void *stream) {
  return Copy("cuMemcpyHtoDAsync_v2", const_cast<void *>(host), device, size, stream, false);
}

int cuLaunchHostFunc(void *handle, void (*function)(void *), void *data) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuLaunchHostFunc")) return error;
  auto *const stream = static_cast<Stream *>(handle);
  return Enqueue(handle, [=, copies = std::exchange(stream->not_launched, {})] {
    {
      std::lock_guard inner(mutex); // the function gives the memory back, and another launch may have it at once
      stream->release(copies);
    }
    in_host_function = true;
    function(data);
    in_host_function = false;
  });
}

int cuModuleLoadData(void **module, const void *image) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuModuleLoadData")) return error;
  if (std::strstr(static_cast<const char *>(image), ".version ") == nullptr) return kInvalidImage;
  *module = const_cast<void *>(image);
  return kSuccess;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuModuleGetFunction")) return error;
  const std::string entry = std::string(".entry ") + name + "(";
  if (std::strstr(static_cast<const char *>(module), entry.c_str()) == nullptr) return kNotFound;
  *function = module;
  return kSuccess;
}

// Does what the kernel's text says; tests/gpu/test_kernel.py runs the text itself.
int cuLaunchKernel(void *function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads, unsigned y,
                   unsigned z, unsigned shared, void *handle, void **parameters, void **extra) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuLaunchKernel")) return error;
  if (function == nullptr || extra != nullptr || blocks * blocks_y * blocks_z != 1 || threads == 0 || y * z != 1 ||
      shared != 0)
    return kInvalidValue;
  KernelWork work;
  std::memcpy(&work, parameters[0], sizeof work);
  if (work.num_copies > 8) Complain("The kernel was given too much to copy.");
  const auto is_reachable = [](uint64_t address, size_t size) {
    for (const auto &[data, pinned_size] : pinned)
      if (Range{data, pinned_size}.holds({reinterpret_cast<std::byte *>(address), size})) return true;
    return false;
  };
  if (!is_reachable(work.flag, 4)) Complain("The kernel's flag is not in pinned memory.");
  auto *const stream = static_cast<Stream *>(handle);
  std::vector<Range> ranges{{reinterpret_cast<std::byte *>(work.flag), 4}};
  for (uint32_t i = 0; i < work.num_copies; ++i) {
    ranges.push_back({reinterpret_cast<std::byte *>(work.copies[i].to), work.copies[i].size});
    if (!is_reachable(work.copies[i].to, work.copies[i].size)) Complain("The kernel was to write where it may not.");
    if (Find(work.copies[i].from, work.copies[i].size) == nullptr) return kInvalidValue;
  }
  for (const auto &[other, owned] : streams)
    for (const Range &used : other->in_use)
      for (const Range &range : ranges)
        if (used.overlaps(range)) Complain("The kernel was given memory that a launch still uses.");
  std::vector<Range> all = std::exchange(stream->not_launched, {});
  all.insert(all.end(), ranges.begin(), ranges.end());
  if (const int error = Enqueue(handle, [=] {
        for (uint32_t i = 0; i < work.num_copies; ++i) {
          const std::byte *from;
          {
            std::lock_guard inner(mutex);
            from = Find(work.copies[i].from, work.copies[i].size);
          }
          std::memcpy(reinterpret_cast<void *>(work.copies[i].to), from, work.copies[i].size);
        }
        auto &flag = *reinterpret_cast<std::atomic<uint32_t> *>(work.flag);
        std::lock_guard inner(mutex); // the slot may be used again as soon as the flag is set
        if (flag.load() != 0) Complain("The kernel's flag was set before it ran.");
        stream->release(all);
        flag.store(1, std::memory_order_release);
      }))
    return error;
  stream->in_use.insert(stream->in_use.end(), ranges.begin(), ranges.end());
  return kSuccess;
}

int cuStreamQuery(void *handle) {
  std::lock_guard lock(mutex);
  if (const int error = Begin("cuStreamQuery")) return error;
  auto *const stream = static_cast<Stream *>(handle);
  if (stream->error != kSuccess) return stream->error;
  return stream->queue.empty() && !stream->busy ? kSuccess : kNotReady;
}

void *StandIn_NewStream() {
  std::lock_guard lock(mutex);
  auto owned = std::make_unique<Stream>();
  Stream *const stream = owned.get();
  static uintptr_t num_streams = 0;
  stream->context = ++num_streams;
  streams[stream] = std::move(owned);
  stream->thread = std::thread(&RunStream, stream);
  return stream;
}

void StandIn_EndStream(void *handle) {
  auto *const stream = static_cast<Stream *>(handle);
  {
    std::lock_guard lock(mutex);
    stream->ending = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  std::lock_guard lock(mutex);
  streams.erase(stream);
}

void StandIn_Hold(void *handle) {
  std::lock_guard lock(mutex);
  static_cast<Stream *>(handle)->held = true;
}

void StandIn_LetGo(void *handle) {
  std::lock_guard lock(mutex);
  static_cast<Stream *>(handle)->held = false;
  static_cast<Stream *>(handle)->changed.notify_all();
}

void StandIn_Synchronize(void *handle) {
  auto *const stream = static_cast<Stream *>(handle);
  std::unique_lock lock(mutex);
  stream->changed.wait(lock, [&] { return stream->queue.empty() && !stream->busy; });
}

void StandIn_FailStream(void *handle, int error) {
  std::lock_guard lock(mutex);
  auto *const stream = static_cast<Stream *>(handle);
  stream->error = error;
  stream->queue.clear();
  stream->changed.notify_all();
}

uint64_t StandIn_Allocate(size_t size) {
  std::lock_guard lock(mutex);
  const uint64_t address = next_address;
  next_address += (size + 4096) / 256 * 256;
  device_memory[address].resize(size == 0 ? 1 : size);
  return address;
}

void *StandIn_Memory(uint64_t address) {
  std::lock_guard lock(mutex);
  return Find(address, 0);
}

void StandIn_FailCall(const char *function, int skipped, int error) {
  std::lock_guard lock(mutex);
  failing[function] = {skipped, error};
}

void StandIn_SetVersion(int other) {
  std::lock_guard lock(mutex);
  version = other;
}

const char *StandIn_Complaints() {
  std::lock_guard lock(mutex);
  shown = complaints;
  return shown.c_str();
}

int StandIn_Calls(const char *function) {
  std::lock_guard lock(mutex);
  return calls[function];
}

size_t StandIn_Allocated() {
  std::lock_guard lock(mutex);
  size_t size = 0;
  for (const auto &[data, pinned_size] : pinned) size += pinned_size;
  return size;
}

int StandIn_Contexts() { return static_cast<int>(contexts.size()); }

void *StandIn_Find(const char *function) {
  static const std::map<std::string, void *> functions{
#define FUNCTION(name) {#name, reinterpret_cast<void *>(&name)}
      FUNCTION(cuDriverGetVersion),  FUNCTION(cuGetErrorName),       FUNCTION(cuGetErrorString),
      FUNCTION(cuStreamGetCtx),      FUNCTION(cuCtxPushCurrent_v2),  FUNCTION(cuCtxPopCurrent_v2),
      FUNCTION(cuMemHostAlloc),      FUNCTION(cuMemcpyDtoHAsync_v2), FUNCTION(cuMemcpyHtoDAsync_v2),
      FUNCTION(cuLaunchHostFunc),    FUNCTION(cuStreamQuery),        FUNCTION(cuModuleLoadData),
      FUNCTION(cuModuleGetFunction), FUNCTION(cuLaunchKernel),
#undef FUNCTION
  };
  const auto it = functions.find(function);
  return it == functions.end() ? nullptr : it->second;
}

} // extern "C"
