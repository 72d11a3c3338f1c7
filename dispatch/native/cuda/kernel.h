// A kernel of ours, which copies what lies on a device into memory of the host's that it can reach, and then sets a
// flag there. So the host learns of it without a host function, for which a stream stands still.
//
// The thread that launches calls everything here.
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

// Puts the kernel into the stream, in the context that is the thread's. Throws DriverError.
void LaunchKernel(const Driver &driver, Stream stream, const KernelWork &work);

} // namespace effects::cuda
