// A kernel of ours that copies from a device into mapped host memory, and then sets a flag there. So the host needs no
// host function, which would stall the stream.
//
// For the launching thread, with the stream's context current, which is also the kernel's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver.h"

namespace effects::cuda {

// The parameters of one launch, as the kernel reads them.
struct KernelWork {
  static constexpr size_t kMostCopies = 8;
  struct Copy {
    Address from = 0, to = 0;
    uint32_t size = 0, unused = 0;
  };
  Address flag = 0;
  uint32_t num_copies = 0, unused = 0;
  Copy copies[kMostCopies];
};
static_assert(sizeof(KernelWork) == 208 && sizeof(KernelWork::Copy) == 24); // as in the kernel's text

inline constexpr char kKernelName[] = "effects_record";
inline constexpr unsigned kKernelThreads = 128;

// The kernel, in NVIDIA's language for all of its devices (PTX).
extern const char *const kKernelText;

// The kernel, loaded on the stream's device. Null, with a warning the first time, if the driver cannot compile it.
// Throws DriverError if the stream has failed.
KernelFunction KernelOf(const Driver &driver, Stream stream);

// Launches the kernel. Throws DriverError.
void LaunchKernel(const Driver &driver, Stream stream, KernelFunction kernel, const KernelWork &work);

} // namespace effects::cuda
