// NVIDIA's driver, loaded when it is first needed. The used part of its interface is declared here, so that building
// needs nothing of NVIDIA's.
//
// Any thread may call everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace effects::cuda {

// The driver's CUresult, CUstream, CUcontext, CUdeviceptr, CUmodule, CUfunction and CUhostFn.
using Result = int;
using Stream = struct DriversStream *;
using Context = struct DriversContext *;
using Address = unsigned long long;
using Module = struct DriversModule *;
using KernelFunction = struct DriversKernel *;
using HostFunction = void (*)(void *);

inline constexpr Result kSuccess = 0, kNotReady = 600;
// Flags of pinned memory: for all devices, and mapped for kernels at the host's addresses.
inline constexpr unsigned kPortable = 1, kMapped = 2;

struct DriverError : std::runtime_error {
  using runtime_error::runtime_error;
};

// A function of the driver. A failed call throws DriverError with the function's name and the error's.
template <typename... Args>
struct Function {
  const char *name;
  Result (*function)(Args...) = nullptr;

  void operator()(Args... args) const;
};

struct Driver {
  Function<int *> get_version{"cuDriverGetVersion"};
  Function<Result, const char **> get_error_name{"cuGetErrorName"};
  Function<Result, const char **> get_error_string{"cuGetErrorString"};
  Function<Stream, Context *> get_context{"cuStreamGetCtx"};
  Function<Context> push_context{"cuCtxPushCurrent_v2"};
  Function<Context *> pop_context{"cuCtxPopCurrent_v2"};
  Function<void **, size_t, unsigned> allocate_pinned{"cuMemHostAlloc"};
  Function<void *, Address, size_t, Stream> copy_to_host{"cuMemcpyDtoHAsync_v2"};
  Function<Address, const void *, size_t, Stream> copy_to_device{"cuMemcpyHtoDAsync_v2"};
  Function<Stream, HostFunction, void *> launch_host_function{"cuLaunchHostFunc"};
  Function<Stream> query{"cuStreamQuery"};
  Function<Module *, const void *> load_module{"cuModuleLoadData"};
  Function<KernelFunction *, Module, const char *> find_kernel{"cuModuleGetFunction"};
  Function<KernelFunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void **,
           void **>
      launch_kernel{"cuLaunchKernel"};
};

// "`cuLaunchHostFunc` failed with CUDA_ERROR_..." and so on.
std::string Describe(const char *function, Result result);

template <typename... Args>
void Function<Args...>::operator()(Args... args) const {
  if (const Result result = function(args...); result != kSuccess) throw DriverError(Describe(name, result));
}

// The interval at which a thread that waits for a stream polls it for a failure, of which there is no other sign.
constexpr std::chrono::milliseconds kLook{100};
// Throws DriverError if the stream has failed.
void CheckStream(const Driver &driver, Stream stream);

// The driver that was found.
struct DriverStatus {
  std::string library;
  int version = 0;      // 1000 * major + 10 * minor; 0: unknown
  std::string why_none; // why it cannot be used; empty if it can
};

inline constexpr int kOldestVersion = 11000;

// The driver; null if none can be used. The first call looks for it.
const Driver *find_driver();
// As find_driver(), but throws DriverError.
const Driver &driver();
DriverStatus driver_status();

// For native tests: from now on the driver's functions are those that `find` returns for their names.
void use_driver(const std::string &called, void *(*find)(const char *name));

// While it lives, a stream's context is current in the calling thread. XLA makes it current for handlers, but does not
// promise that.
class InContextOf {
public:
  InContextOf(const Driver &driver, Stream stream);
  InContextOf(const InContextOf &) = delete;
  ~InContextOf();

private:
  const Driver &driver_;
};

} // namespace effects::cuda
