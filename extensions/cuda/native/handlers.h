// XLA FFI handlers for programs on NVIDIA's GPUs. Each launches copies of its operands, from which the records of the
// CPU handler are published (launch.h, xla/bodies.h). No stream is waited for, and the host writes no token: the
// program counts, and the call returns its token unchanged.
//
// XLA's launching threads call them. They and the host functions throw no exception.
//
// A slot of pinned memory belongs to one launch, so a call must not be replayed. So only `After`, which does nothing,
// is marked as compatible with command buffers (CUDA graphs).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/native/xla/handlers.h"

namespace effects::cuda {

// A site of a loaded program, shared with host functions, which may outlive the program. A type of its own, since XLA's
// GPU plugin numbers types separately from the CPU's.
struct LoadedCudaSite {
  static xla::ffi::TypeId id;

  std::shared_ptr<const LoadedSite> site;
  std::string where;        // the user's line
  std::string not_recorded; // the error text for a failure of the driver
};

void *LoadedCudaSiteTypeId();
void *LoadedCudaSiteTypeInfo();

const std::vector<Handler> &handlers();

// The handlers of asynchronous operations, with their stages.
std::vector<Handler> OperationHandlers();

} // namespace effects::cuda
