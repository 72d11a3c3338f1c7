// NVIDIA's driver, found when it is first needed. What little of its interface is used is declared here, so that
// building needs nothing of NVIDIA's.
//
// Any thread may call everything here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace effects::cuda {

// As the driver has them: CUresult, CUstream, CUcontext, CUdeviceptr, CUmodule, CUfunction and CUhostFn.
using Result = int;
using Stream = struct DriversStream *;
using Context = struct DriversContext *;
using Address = unsigned long long;
using Module = struct DriversModule *;
using KernelFunction = struct DriversKernel *;
using HostFunction = void (*)(void *);

inline constexpr Result kSuccess = 0, kNotReady = 600;
// Of pinned memory: for all devices; kernels reach it too, by the host's own addresses.
inline constexpr unsigned kPortable = 1, kMapped = 2;

struct DriverError : std::runtime_error {
  using runtime_error::runtime_error;
};

// A function of the driver's. Called, it throws DriverError, which names it and what went wrong.
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

// How often a thread that waits for what a stream comes to looks whether that has failed, which nothing else tells it.
constexpr std::chrono::milliseconds kLook{100};
// Throws DriverError if it has.
void CheckStream(const Driver &driver, Stream stream);

// Which driver there is.
struct DriverStatus {
  std::string library;
  int version = 0;      // 1000 * major + 10 * minor; 0: unknown
  std::string why_none; // why it cannot be used; empty: it can
};

inline constexpr int kOldestVersion = 11000;

// Null: there is none that can be used. The first call looks for it.
const Driver *find_driver();
// As find_driver(), but throws DriverError.
const Driver &driver();
DriverStatus driver_status();

// For native tests, which are one program: from now on the driver is what `find` gives for the names of its functions.
void use_driver(const std::string &called, void *(*find)(const char *name));

// While it lives, the context of a stream is the calling thread's. XLA has made it so where it calls handlers, but does
// not promise that.
class InContextOf {
public:
  InContextOf(const Driver &driver, Stream stream);
  InContextOf(const InContextOf &) = delete;
  ~InContextOf();

private:
  const Driver &driver_;
};

} // namespace effects::cuda
