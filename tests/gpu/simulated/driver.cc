// What XLA and the library use of NVIDIA's driver, on the simulated machine. Of functions that are not here both find
// that there are none.
//
// It is stricter than the driver where the driver's documentation allows that: a host function that calls it ends the
// process, and host functions of all streams run one after the other.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

#include "machine.h"
#include "ptx.h"

using simulated::Address;
using simulated::memory;
using simulated::Stream;

namespace {

using Result = int;
constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidContext = 201,
                 kInvalidImage = 218, kNotFound = 500, kNotReady = 600;

struct Context {
  int device;
};
constexpr int kMostDevices = 16;
Context contexts[kMostDevices];
thread_local std::vector<Context *> stack;
thread_local bool in_host_function = false;
auto &host_functions = *new std::mutex;

Context *current() { return stack.empty() ? nullptr : stack.back(); }
int device() { return current()->device; }

// Of each call that a host function may not make.
void Called(const char *function) {
  if (in_host_function) simulated::Fail(std::string("A host function calls ") + function + ".");
}
#define CALLED_IN_CONTEXT(function)                                                                                    \
  Called(function);                                                                                                    \
  if (current() == nullptr) return kInvalidContext;

struct Event {
  std::mutex mutex; // guards all below
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
};

struct Function {
  const simulated::Kernel *kernel;
  std::string name;
};
struct Loaded {
  std::unique_ptr<simulated::Module> module;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

// A stream of zero is the device's own.
Stream &StreamOf(void *stream) {
  if (stream != nullptr) return *static_cast<Stream *>(stream);
  static std::mutex mutex;
  static auto &own = *new std::map<int, Stream *>;
  std::lock_guard lock(mutex);
  Stream *&found = own[device()];
  if (found == nullptr) found = &simulated::NewStream(device());
  return *found;
}

Result Copy(Address to, Address from, size_t size, void *stream) {
  StreamOf(stream).put([=] { std::memmove(memory().real(to, size, true), memory().real(from, size, true), size); });
  return kSuccess;
}
Result CopyNow(Address to, Address from, size_t size) {
  simulated::Synchronize(device());
  std::memmove(memory().real(to, size, true), memory().real(from, size, true), size);
  return kSuccess;
}
Address AddressOf(const void *data) { return reinterpret_cast<Address>(data); }
bool is_pinned(const void *data) { return memory().find(AddressOf(data)).size != 0; }

template <typename Value>
Result Fill(Address to, Value value, size_t count, void *stream) {
  StreamOf(stream).put([=] {
    auto *const at = static_cast<Value *>(memory().real(to, count * sizeof value));
    std::fill_n(at, count, value);
  });
  return kSuccess;
}

// The structures of the driver's that are used, as far as they are.
struct AllocationProperties {
  int type, handle_types;
  struct {
    int type, id;
  } location;
};
struct Allocation {
  size_t size;
  int device;
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void *stream;
};

} // namespace

extern "C" {

// For other libraries of the simulated machine.
void *simulated_memory(Address address, size_t size) { return memory().real(address, size); }
void simulated_put(void *stream, void (*work)(void *), void *data) {
  StreamOf(stream).put([=] { work(data); });
}

Result cuInit(unsigned) {
  for (int i = 0; i < kMostDevices; ++i) contexts[i].device = i;
  return kSuccess;
}
Result cuDriverGetVersion(int *version) {
  *version = 13000;
  return kSuccess;
}
Result cuGetErrorName(Result error, const char **name) {
  *name = error == kNotReady ? "CUDA_ERROR_NOT_READY" : error == kSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
Result cuGetErrorString(Result, const char **text) {
  *text = "an error of the simulated GPU";
  return kSuccess;
}

// Devices.
Result cuDeviceGetCount(int *count) {
  *count = simulated::NumDevices();
  return kSuccess;
}
Result cuDeviceGet(int *found, int ordinal) {
  *found = ordinal;
  return ordinal < simulated::NumDevices() ? kSuccess : kInvalidDevice;
}
Result cuDeviceGetName(char *name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "NVIDIA A100");
  return kSuccess;
}
Result cuDeviceGetUuid_v2(char *uuid, int device) {
  std::memset(uuid, device + 1, 16);
  return kSuccess;
}
Result cuDeviceGetPCIBusId(char *name, int size, int device) {
  std::snprintf(name, static_cast<size_t>(size), "0000:%02X:00.0", static_cast<unsigned>(device) + 1);
  return kSuccess;
}
Result cuDeviceTotalMem_v2(size_t *size, int) {
  *size = simulated::Memory::kOfDevice;
  return kSuccess;
}
Result cuDeviceCanAccessPeer(int *can, int, int) {
  *can = 1;
  return kSuccess;
}
Result cuDeviceGetP2PAttribute(int *value, int, int, int) {
  *value = 1;
  return kSuccess;
}
// By the driver's numbers. What is not here is 0. Of compute capability 8.0 kernels have no instructions that only
// newer devices have.
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  static const std::map<int, int> values{
      {1, 1024},    {2, 1024},      {3, 1024},    {4, 64},       {5, 2147483647}, {6, 65535}, {7, 65535},
      {8, 49152},   {10, 32},       {12, 65536},  {13, 1410000}, {16, 108},       {19, 1},    {36, 1215000},
      {37, 5120},   {38, 41943040}, {39, 2048},   {40, 3},       {41, 1},         {75, 8},    {76, 0},
      {81, 167936}, {82, 65536},    {97, 166912}, {102, 1},      {106, 32},
  };
  const auto it = values.find(attribute);
  *value = attribute == 33 ? device + 1 : it == values.end() ? 0 : it->second;
  return kSuccess;
}

// Contexts.
Result cuDevicePrimaryCtxRetain(Context **context, int device) {
  *context = &contexts[device];
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
Result cuDevicePrimaryCtxGetState(int, unsigned *flags, int *active) {
  *flags = 0;
  *active = 0;
  return kSuccess;
}
Result cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return kSuccess; }
Result cuCtxGetCurrent(Context **context) {
  *context = current();
  return kSuccess;
}
Result cuCtxSetCurrent(Context *context) {
  Called("cuCtxSetCurrent");
  if (stack.empty()) stack.push_back(nullptr);
  stack.back() = context;
  return kSuccess;
}
Result cuCtxPushCurrent_v2(Context *context) {
  Called("cuCtxPushCurrent");
  stack.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context **context) {
  CALLED_IN_CONTEXT("cuCtxPopCurrent")
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return kSuccess;
}
Result cuCtxGetDevice(int *found) {
  CALLED_IN_CONTEXT("cuCtxGetDevice")
  *found = device();
  return kSuccess;
}
Result cuCtxGetFlags(unsigned *flags) {
  *flags = 0;
  return kSuccess;
}
Result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
Result cuCtxEnablePeerAccess(Context *, unsigned) { return kSuccess; }
Result cuCtxSynchronize() {
  CALLED_IN_CONTEXT("cuCtxSynchronize")
  simulated::Synchronize(device());
  return kSuccess;
}

// Memory of devices.
Result cuMemGetInfo_v2(size_t *free, size_t *all) {
  CALLED_IN_CONTEXT("cuMemGetInfo")
  *all = simulated::Memory::kOfDevice;
  *free = *all - memory().used(device());
  return kSuccess;
}
Result cuMemAlloc_v2(Address *address, size_t size) {
  CALLED_IN_CONTEXT("cuMemAlloc")
  *address = memory().reserve(size);
  return *address != 0 && memory().map(*address, size, device()) ? kSuccess : kOutOfMemory;
}
Result cuMemFree_v2(Address address) {
  CALLED_IN_CONTEXT("cuMemFree")
  simulated::Synchronize(device());
  const size_t size = memory().find(address).size;
  memory().unmap(address);
  memory().give_back(address, size);
  return kSuccess;
}
Result cuMemGetAllocationGranularity(size_t *size, const AllocationProperties *, int) {
  *size = size_t{1} << 21;
  return kSuccess;
}
Result cuMemAddressReserve(Address *address, size_t size, size_t, Address, unsigned long long) {
  *address = memory().reserve(size);
  return *address == 0 ? kOutOfMemory : kSuccess;
}
Result cuMemAddressFree(Address address, size_t size) {
  memory().give_back(address, size);
  return kSuccess;
}
Result cuMemCreate(Allocation **made, size_t size, const AllocationProperties *properties, unsigned long long) {
  *made = new Allocation{size, properties->location.id};
  return kSuccess;
}
Result cuMemRelease(Allocation *) { return kSuccess; }
Result cuMemMap(Address address, size_t size, size_t, const Allocation *allocation, unsigned long long) {
  return memory().map(address, size, allocation->device) ? kSuccess : kOutOfMemory;
}
Result cuMemUnmap(Address address, size_t) {
  memory().unmap(address);
  return kSuccess;
}
Result cuMemSetAccess(Address, size_t, const void *, size_t) { return kSuccess; }
Result cuMemGetAddressRange_v2(Address *first, size_t *size, Address address) {
  const auto range = memory().find(address);
  if (range.size == 0 || range.device < 0) return kNotFound;
  if (first != nullptr) *first = range.first;
  if (size != nullptr) *size = range.size;
  return kSuccess;
}

// Memory of the host's.
Result cuMemHostAlloc(void **data, size_t size, unsigned) {
  CALLED_IN_CONTEXT("cuMemHostAlloc")
  *data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  memory().pin(*data, size);
  return kSuccess;
}
Result cuMemFreeHost(void *data) {
  CALLED_IN_CONTEXT("cuMemFreeHost")
  simulated::Synchronize(-1);
  memory().unpin(data);
  std::free(data);
  return kSuccess;
}
Result cuMemHostRegister_v2(void *data, size_t size, unsigned) {
  CALLED_IN_CONTEXT("cuMemHostRegister")
  memory().pin(data, size);
  return kSuccess;
}
Result cuMemHostUnregister(void *data) {
  CALLED_IN_CONTEXT("cuMemHostUnregister")
  memory().unpin(data);
  return kSuccess;
}
Result cuMemHostGetDevicePointer_v2(Address *address, void *data, unsigned) {
  *address = AddressOf(data);
  return kSuccess;
}
Result cuPointerGetAttribute(void *value, int attribute, Address address) {
  const auto range = memory().find(address);
  if (range.size == 0) return kInvalidValue;
  const int device = std::max(range.device, 0);
  switch (attribute) {
  case 1: // the context
    *static_cast<Context **>(value) = &contexts[device];
    return kSuccess;
  case 2: // the kind of memory
    *static_cast<unsigned *>(value) = range.device < 0 ? 1 : 2;
    return kSuccess;
  case 3: // the address on the device
    *static_cast<Address *>(value) = address;
    return kSuccess;
  case 8: // whether it is managed
    *static_cast<unsigned *>(value) = 0;
    return kSuccess;
  case 9: // the device
    *static_cast<int *>(value) = device;
    return kSuccess;
  default:
    return kInvalidValue;
  }
}

// Streams and events.
Result cuStreamCreateWithPriority(Stream **stream, unsigned, int) {
  CALLED_IN_CONTEXT("cuStreamCreate")
  *stream = &simulated::NewStream(device());
  return kSuccess;
}
Result cuStreamCreate(Stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
Result cuStreamDestroy_v2(Stream *) { return kSuccess; } // its thread stays
Result cuStreamSynchronize(void *stream) {
  Called("cuStreamSynchronize");
  StreamOf(stream).synchronize();
  return kSuccess;
}
Result cuStreamQuery(void *stream) {
  CALLED_IN_CONTEXT("cuStreamQuery")
  return StreamOf(stream).is_idle() ? kSuccess : kNotReady;
}
Result cuStreamGetCtx(void *stream, Context **context) {
  Called("cuStreamGetCtx");
  *context = &contexts[StreamOf(stream).device];
  return kSuccess;
}
Result cuStreamGetPriority(void *, int *priority) {
  *priority = 0;
  return kSuccess;
}
Result cuStreamIsCapturing(void *, int *status) {
  *status = 0;
  return kSuccess;
}
Result cuEventCreate(Event **event, unsigned) {
  *event = new Event;
  return kSuccess;
}
Result cuEventDestroy_v2(Event *) { return kSuccess; } // a stream may come to it yet
Result cuEventRecord(Event *event, void *stream) {
  Called("cuEventRecord");
  std::lock_guard lock(event->mutex);
  StreamOf(stream).put([event, number = ++event->recorded] {
    std::lock_guard lock(event->mutex);
    event->reached = std::max(event->reached, number);
    event->changed.notify_all();
  });
  return kSuccess;
}
Result cuEventQuery(Event *event) {
  Called("cuEventQuery");
  std::lock_guard lock(event->mutex);
  return event->reached == event->recorded ? kSuccess : kNotReady;
}
static void AwaitEvent(Event *event, uint64_t number) {
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [&] { return event->reached >= number; });
}
Result cuEventSynchronize(Event *event) {
  Called("cuEventSynchronize");
  std::unique_lock lock(event->mutex);
  const uint64_t number = event->recorded;
  lock.unlock();
  AwaitEvent(event, number);
  return kSuccess;
}
Result cuEventElapsedTime_v2(float *milliseconds, Event *, Event *) {
  *milliseconds = 0.01F;
  return kSuccess;
}
Result cuEventElapsedTime(float *milliseconds, Event *from, Event *to) {
  return cuEventElapsedTime_v2(milliseconds, from, to);
}
Result cuStreamWaitEvent(void *stream, Event *event, unsigned) {
  Called("cuStreamWaitEvent");
  std::lock_guard lock(event->mutex);
  StreamOf(stream).put([event, number = event->recorded] { AwaitEvent(event, number); });
  return kSuccess;
}
Result cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  Called("cuLaunchHostFunc");
  StreamOf(stream).put([=] {
    std::lock_guard lock(host_functions);
    in_host_function = true;
    function(data);
    in_host_function = false;
  });
  return kSuccess;
}

// Copies. Those from and to memory that is not pinned are over, or have taken what they copy, when they return.
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyDtoHAsync")
  Copy(AddressOf(to), from, size, stream);
  if (!is_pinned(to)) StreamOf(stream).synchronize();
  return kSuccess;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyHtoDAsync")
  if (is_pinned(from)) return Copy(to, AddressOf(from), size, stream);
  const auto *const bytes = static_cast<const std::byte *>(from);
  const auto taken = std::make_shared<std::vector<std::byte>>(bytes, bytes + size);
  StreamOf(stream).put([=] { std::memcpy(memory().real(to, size), taken->data(), size); });
  return kSuccess;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyDtoDAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyAsync(Address to, Address from, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyPeerAsync(Address to, Context *, Address from, Context *, size_t size, void *stream) {
  CALLED_IN_CONTEXT("cuMemcpyPeerAsync")
  return Copy(to, from, size, stream);
}
Result cuMemcpyDtoH_v2(void *to, Address from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyDtoH")
  return CopyNow(AddressOf(to), from, size);
}
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyHtoD")
  return CopyNow(to, AddressOf(from), size);
}
Result cuMemcpyDtoD_v2(Address to, Address from, size_t size) {
  CALLED_IN_CONTEXT("cuMemcpyDtoD")
  return CopyNow(to, from, size);
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
  CALLED_IN_CONTEXT("cuMemsetD8Async")
  return Fill(to, value, count, stream);
}
Result cuMemsetD32Async(Address to, unsigned value, size_t count, void *stream) {
  CALLED_IN_CONTEXT("cuMemsetD32Async")
  return Fill(to, value, count, stream);
}
Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  return cuMemsetD8Async(to, value, count, nullptr) != kSuccess ? kInvalidContext : cuCtxSynchronize();
}
Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  return cuMemsetD32Async(to, value, count, nullptr) != kSuccess ? kInvalidContext : cuCtxSynchronize();
}

// Kernels. What a module is loaded from is its text, which is what the simulated assembler makes.
Result cuModuleLoadData(Loaded **made, const void *image) {
  CALLED_IN_CONTEXT("cuModuleLoadData")
  try {
    auto loaded = std::make_unique<Loaded>();
    loaded->module = std::make_unique<simulated::Module>(static_cast<const char *>(image), device());
    *made = loaded.release(); // kernels may run when it is unloaded
    return kSuccess;
  } catch (const std::exception &error) {
    std::fprintf(stderr, "The simulated GPU: %s\n", error.what());
    return kInvalidImage;
  }
}
Result cuModuleLoadDataEx(Loaded **made, const void *image, unsigned, int *, void **) {
  return cuModuleLoadData(made, image);
}
Result cuModuleLoadFatBinary(Loaded **made, const void *image) { return cuModuleLoadData(made, image); }
Result cuModuleUnload(Loaded *) { return kSuccess; }
Result cuModuleGetFunction(Function **function, Loaded *loaded, const char *name) {
  CALLED_IN_CONTEXT("cuModuleGetFunction")
  const simulated::Kernel *const kernel = loaded->module->find(name);
  if (kernel == nullptr) return kNotFound;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto &known = loaded->functions[name];
  if (known == nullptr) known = std::make_unique<Function>(Function{kernel, name});
  *function = known.get();
  return kSuccess;
}
Result cuModuleGetGlobal_v2(Address *address, size_t *size, Loaded *loaded, const char *name) {
  CALLED_IN_CONTEXT("cuModuleGetGlobal")
  const auto *const variable = loaded->module->variable(name);
  if (variable == nullptr) return kNotFound;
  if (address != nullptr) *address = variable->address;
  if (size != nullptr) *size = variable->size;
  return kSuccess;
}
Result cuFuncGetAttribute(int *value, int attribute, Function *) {
  *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; // threads of a block, and registers of a thread
  return kSuccess;
}
Result cuFuncSetAttribute(Function *, int, int) { return kSuccess; }
Result cuFuncSetCacheConfig(Function *, int) { return kSuccess; }
Result cuFuncGetName(const char **name, Function *function) {
  *name = function->name.c_str();
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *, int, size_t) {
  *blocks = 1;
  return kSuccess;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, Function *, int, size_t, unsigned) {
  *blocks = 1;
  return kSuccess;
}
Result cuLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **given, void **) {
  CALLED_IN_CONTEXT("cuLaunchKernel")
  std::vector<std::vector<std::byte>> parameters;
  for (const size_t size : simulated::ParametersOf(*function->kernel)) {
    const auto *const bytes = static_cast<const std::byte *>(given[parameters.size()]);
    parameters.emplace_back(bytes, bytes + size);
  }
  StreamOf(stream).put([=, parameters = std::move(parameters)] {
    try {
      Run(*function->kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, parameters, shared);
    } catch (const std::exception &error) {
      simulated::Fail(function->name + ": " + error.what());
    }
  });
  return kSuccess;
}
Result cuLaunchKernelEx(const LaunchConfig *config, Function *function, void **parameters, void **more) {
  const auto &grid = config->grid, &block = config->block;
  return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                        config->stream, parameters, more);
}

} // extern "C"
