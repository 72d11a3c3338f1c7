// XLA FFI handlers for programs on NVIDIA's GPUs. Each puts copies of its operands into the stream, and has published
// from them what the handler of a CPU would publish (launch.h, xla/bodies.h). No stream is waited for, and the host
// writes no token: the program counts by itself, and the call gives its token back as it came.
//
// XLA's launching threads call them. No exception leaves them, nor the host functions.
//
// A slot of pinned memory belongs to one launch, so a call must not be replayed: none of them but the one that does
// nothing says that it may be put into a command buffer (a CUDA graph).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/native/xla/handlers.h"

namespace effects::cuda {

// What a loaded program keeps of a site of its own, shared with host functions, which may come when it is gone. XLA's
// plugin for GPUs numbers types by itself, so that the type is another than that of CPUs.
struct LoadedCudaSite {
  static xla::ffi::TypeId id;

  std::shared_ptr<const LoadedSite> site;
  std::string where;        // the user's line
  std::string not_recorded; // the text of the error if a function of the driver's fails
};

void *LoadedCudaSiteTypeId();
void *LoadedCudaSiteTypeInfo();

const std::vector<Handler> &handlers();

// Those of asynchronous operations, of stages that are theirs alone: for the table of all.
std::vector<Handler> OperationHandlers();

} // namespace effects::cuda
