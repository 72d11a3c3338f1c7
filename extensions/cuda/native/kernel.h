// A kernel of ours, which copies what lies on a device into memory of the host's that it can reach, and then sets a
// flag there. So the host learns of it without a host function, for which a stream stands still.
//
// The thread that launches calls everything here, with the stream's context, which is that of the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver.h"

namespace effects::cuda {

// What one launch of it does, as the kernel reads it.
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

// The kernel as it is loaded on the stream's device; null, and a warning the first time, if it cannot be: the driver
// compiles it, and may be without its compiler. Throws DriverError if the stream has failed.
KernelFunction KernelOf(const Driver &driver, Stream stream);

// Puts the kernel into the stream. Throws DriverError.
void LaunchKernel(const Driver &driver, Stream stream, KernelFunction kernel, const KernelWork &work);

} // namespace effects::cuda
