// The driver's functions for devices, contexts, streams and events.
#include "driver.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace simulated {
namespace {

thread_local std::vector<Context *> stack;
thread_local bool in_host_function = false;
auto &host_functions = *new std::mutex;

} // namespace

struct Event {
  std::mutex mutex; // guards all below
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
};

Context &ContextOf(int device) {
  static Context contexts[] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
  return contexts[device];
}
Context *current() { return stack.empty() ? nullptr : stack.back(); }

void Called(const char *function) {
  if (in_host_function) Fail(std::string("A host function calls ") + function + ".");
}

Stream &StreamOf(void *stream) {
  if (stream != nullptr) return *static_cast<Stream *>(stream);
  static std::mutex mutex;
  static auto &own = *new std::map<int, Stream *>;
  std::lock_guard lock(mutex);
  Stream *&found = own[device()];
  if (found == nullptr) found = &NewStream(device());
  return *found;
}

} // namespace simulated

using namespace simulated;

extern "C" {

// For other libraries of the simulated machine.
void *simulated_memory(Address address, size_t size) { return memory().real(address, size); }
void simulated_put(void *stream, void (*work)(void *), void *data) {
  if (BreakCapture(StreamOf(stream)) != kSuccess) Fail("A collective is captured.");
  StreamOf(stream).put([=] { work(data); });
}

Result cuInit(unsigned) { return kSuccess; }
Result cuDriverGetVersion(int *version) {
  *version = 13000;
  return kSuccess;
}
Result cuGetErrorName(Result error, const char **name) {
  *name = error == kNotReady ? "CUDA_ERROR_NOT_READY" : error == kSuccess ? "CUDA_SUCCESS" : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
Result cuGetErrorString(Result error, const char **text) {
  static std::mutex mutex;
  static auto &texts = *new std::map<Result, std::string>;
  std::lock_guard lock(mutex);
  *text = texts.emplace(error, "error " + std::to_string(error) + " of the simulated GPU").first->second.c_str();
  return kSuccess;
}

// Devices.
Result cuDeviceGetCount(int *count) {
  *count = NumDevices();
  return kSuccess;
}
Result cuDeviceGet(int *found, int ordinal) {
  *found = ordinal;
  return ordinal < NumDevices() ? kSuccess : kInvalidDevice;
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
  *size = Memory::kOfDevice;
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
  *context = &ContextOf(device);
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
  OUTSIDE_CAPTURE(*current())
  Synchronize(device());
  return kSuccess;
}

// Streams and events.
Result cuStreamCreateWithPriority(Stream **stream, unsigned, int) {
  CALLED_IN_CONTEXT("cuStreamCreate")
  *stream = &NewStream(device());
  return kSuccess;
}
Result cuStreamCreate(Stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
Result cuStreamDestroy_v2(Stream *) { return kSuccess; } // its thread stays
Result cuStreamSynchronize(void *stream) {
  Called("cuStreamSynchronize");
  OUTSIDE_CAPTURE(StreamOf(stream))
  StreamOf(stream).synchronize();
  return kSuccess;
}
Result cuStreamQuery(void *stream) {
  CALLED_IN_CONTEXT("cuStreamQuery")
  OUTSIDE_CAPTURE(StreamOf(stream))
  return StreamOf(stream).is_idle() ? kSuccess : kNotReady;
}
Result cuStreamGetCtx(void *stream, Context **context) {
  Called("cuStreamGetCtx");
  *context = &ContextOf(StreamOf(stream).device);
  return kSuccess;
}
Result cuStreamGetPriority(void *, int *priority) {
  *priority = 0;
  return kSuccess;
}
Result cuEventCreate(Event **event, unsigned) {
  *event = new Event;
  return kSuccess;
}
Result cuEventDestroy_v2(Event *) { return kSuccess; } // a stream may come to it yet
Result cuEventRecord(Event *event, void *stream) {
  Called("cuEventRecord");
  if (const auto result = RecordInCapture(event, stream)) return *result;
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
  OUTSIDE_CAPTURE(event)
  std::lock_guard lock(event->mutex);
  return event->reached == event->recorded ? kSuccess : kNotReady;
}
static void AwaitEvent(Event *event, uint64_t number) {
  std::unique_lock lock(event->mutex);
  event->changed.wait(lock, [&] { return event->reached >= number; });
}
Result cuEventSynchronize(Event *event) {
  Called("cuEventSynchronize");
  OUTSIDE_CAPTURE(event)
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
  if (const auto result = WaitInCapture(stream, event)) return *result;
  std::lock_guard lock(event->mutex);
  StreamOf(stream).put([event, number = event->recorded] { AwaitEvent(event, number); });
  return kSuccess;
}
Result cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
  Called("cuLaunchHostFunc");
  return Put(stream, NodeType::kHostFunction, [=] {
    std::lock_guard lock(host_functions);
    in_host_function = true;
    function(data);
    in_host_function = false;
  });
}

} // extern "C"
