// The handler of `cyclic_add` for NVIDIA GPUs. Build it with
//
//   nvcc -std=c++17 -shared -Xcompiler -fPIC -o handlers_cuda.so handlers.cu
//     -I "$(python -c 'import jax; print(jax.ffi.include_dir())')"
//     -I "$(python -c 'import effects; print(effects.include_dir())')"
//
// and register it beside the one for the CPU:
//
//   fx.register_custom_call("cyclic_add", ("./handlers_cuda.so", "cyclic_add_cuda"), platform="cuda")
#include <cstdint>

#include <cuda_runtime.h>

#include "token_effects/custom_call.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;

__global__ void AddCyclically(int64_t m, int64_t n, const float *a, const float *b, float *out) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride)
    out[i] = a[i % m] + b[i];
}

static ffi::Error CyclicAddCuda(cudaStream_t stream, int64_t m, int64_t n, F32 a, F32 b,
                                ffi::ResultBuffer<ffi::F32> out) {
  if (m < 1 || static_cast<int64_t>(a.element_count()) != m || static_cast<int64_t>(b.element_count()) != n)
    return token_effects::Error(ffi::ErrorCode::kInvalidArgument, "The sizes of the operands are not `m` and `n`",
                                "The first is added cyclically to the second", "Pass their sizes as `m` and `n`");
  if (n == 0) return ffi::Error::Success();
  constexpr int kThreads = 256;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  AddCyclically<<<static_cast<unsigned>(blocks < 65535 ? blocks : 65535), kThreads, 0, stream>>>(
      m, n, a.typed_data(), b.typed_data(), out->typed_data());
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    return token_effects::Error(ffi::ErrorCode::kInternal, cudaGetErrorString(error),
                                "A kernel is launched on the stream of the program", "Look at the device");
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(cyclic_add_cuda, CyclicAddCuda,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Attr<int64_t>("m")
                                  .Attr<int64_t>("n")
                                  .Arg<F32>()
                                  .Arg<F32>()
                                  .Ret<F32>());
