// What XLA asks of NVIDIA's other libraries before it runs a program: that they are there, and of which version.
#include <cstddef>
#include <cstdint>
#include <cstdio>

extern "C" {

// The driver's.
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream);
int cuStreamSynchronize(void *stream);
void *simulated_idle_kernel();

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int) { return "an error of the simulated GPU"; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  std::snprintf(version, size, "580.00");
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *, void **) { return 3; } // not supported

int cudaGetDeviceCount(int *count) { return cuDeviceGetCount(count); }
int cudaSetDevice(int device) {
  void *context;
  cuDevicePrimaryCtxRetain(&context, device);
  return cuCtxSetCurrent(context);
}
int cudaRuntimeGetVersion(int *version) {
  *version = 13000;
  return 0;
}
// JAX's own callbacks copy so, and wait.
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  return kind == 2 ? cuMemcpyDtoHAsync_v2(to, reinterpret_cast<uint64_t>(from), size, stream)
                   : cuMemcpyHtoDAsync_v2(reinterpret_cast<uint64_t>(to), from, size, stream);
}
int cudaStreamSynchronize(void *stream) { return cuStreamSynchronize(stream); }
// Of XLA's own kernels, which are in no module: they compare what two kernels give that it tries out, and what is
// behind it in memory. None of them counts a difference.
int cudaGetFuncBySymbol(void **function, const void *) {
  *function = simulated_idle_kernel();
  return 0;
}
int cudaGetLastError() { return 0; }
int cudaPeekAtLastError() { return 0; }
const char *cudaGetErrorName(int) { return "cudaErrorUnknown"; }
const char *cudaGetErrorString(int) { return "an error of the simulated GPU"; }

size_t cudnnGetVersion() { return 91200; }
int cudnnGetProperty(int which, int *value) {
  *value = which == 0 ? 9 : which == 1 ? 12 : 0;
  return 0;
}
int cudnnCreate(void **handle) {
  static char one;
  *handle = &one;
  return 0;
}
int cudnnDestroy(void *) { return 0; }
int cudnnSetStream(void *, void *) { return 0; }

} // extern "C"
