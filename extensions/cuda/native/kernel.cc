#include "kernel.h"

#include <map>
#include <mutex>
#include <string>

#include "dispatch/native/xla/host_failures.h"

namespace effects::cuda {
namespace {

constexpr char kNotLoaded[] = "The kernel by which the host learns of records could not be loaded, so slower host "
                              "functions are used on that GPU. ";
constexpr char kInstead[] = " The driver compiles the kernel: for that it needs its library "
                            "`libnvidia-ptxjitcompiler.so.1`, and the variable `CUDA_DISABLE_PTX_JIT` must not be set.";

} // namespace

// A strided copy: each thread copies every n-th word, or byte if a size or address is not a multiple of four. The host
// sees the copies before the flag (membar.sys), which the first thread sets when all have copied (bar.sync).
const char *const kKernelText = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry effects_record(.param .align 8 .b8 work[208])
{
  .reg .pred %p<5>;
  .reg .b32 %r<12>;
  .reg .b64 %rd<8>;

  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  ld.param.u32 %r3, [work+8];
  mov.u64 %rd1, work;
  mov.u32 %r4, 0;
COPY:
  setp.ge.u32 %p1, %r4, %r3;
  @%p1 bra COPIED;
  ld.param.u64 %rd2, [%rd1+16];
  ld.param.u64 %rd3, [%rd1+24];
  ld.param.u32 %r5, [%rd1+32];
  cvt.u32.u64 %r6, %rd2;
  cvt.u32.u64 %r7, %rd3;
  or.b32 %r6, %r6, %r7;
  or.b32 %r6, %r6, %r5;
  and.b32 %r6, %r6, 3;
  setp.ne.u32 %p2, %r6, 0;
  @%p2 bra BYTES;
  shl.b32 %r8, %r1, 2;
  shl.b32 %r9, %r2, 2;
WORD:
  setp.ge.u32 %p3, %r8, %r5;
  @%p3 bra NEXT;
  cvt.u64.u32 %rd4, %r8;
  add.u64 %rd5, %rd2, %rd4;
  add.u64 %rd6, %rd3, %rd4;
  ld.global.u32 %r10, [%rd5];
  st.global.u32 [%rd6], %r10;
  add.u32 %r8, %r8, %r9;
  bra WORD;
BYTES:
  mov.u32 %r8, %r1;
BYTE:
  setp.ge.u32 %p3, %r8, %r5;
  @%p3 bra NEXT;
  cvt.u64.u32 %rd4, %r8;
  add.u64 %rd5, %rd2, %rd4;
  add.u64 %rd6, %rd3, %rd4;
  ld.global.u8 %r10, [%rd5];
  st.global.u8 [%rd6], %r10;
  add.u32 %r8, %r8, %r2;
  bra BYTE;
NEXT:
  add.u64 %rd1, %rd1, 24;
  add.u32 %r4, %r4, 1;
  bra COPY;
COPIED:
  membar.sys;
  bar.sync 0;
  setp.ne.u32 %p4, %r1, 0;
  @%p4 bra END;
  membar.sys;
  ld.param.u64 %rd7, [work];
  mov.u32 %r11, 1;
  st.volatile.global.u32 [%rd7], %r11;
END:
  ret;
}
)";

// Loaded once for each context; XLA's contexts live as long as the process.
KernelFunction KernelOf(const Driver &driver, Stream stream) {
  Context context = nullptr;
  driver.get_context(stream, &context);
  static std::mutex mutex; // never held during a call of the driver, which may wait for a device
  static auto &kernels = *new std::map<Context, KernelFunction>;
  {
    std::lock_guard lock(mutex);
    if (const auto it = kernels.find(context); it != kernels.end()) return it->second;
  }
  Module module = nullptr;
  KernelFunction kernel = nullptr;
  try {
    driver.load_module(&module, kKernelText);
    driver.find_kernel(&kernel, module, kKernelName);
  } catch (const DriverError &error) {
    CheckStream(driver, stream);
    kernel = nullptr;
    host_failures().warn(std::string(kNotLoaded) + error.what() + kInstead);
  }
  std::lock_guard lock(mutex);
  return kernels.try_emplace(context, kernel).first->second; // the other thread's kernel if that was first
}

void LaunchKernel(const Driver &driver, Stream stream, KernelFunction kernel, const KernelWork &work) {
  void *parameters[] = {const_cast<KernelWork *>(&work)}; // the driver copies it
  driver.launch_kernel(kernel, 1, 1, 1, kKernelThreads, 1, 1, 0, stream, parameters, nullptr);
}

} // namespace effects::cuda
