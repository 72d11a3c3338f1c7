// XLA FFI handlers: where a compiled program on the CPU meets the publisher. No exception leaves them, and none of
// them takes the Python lock. The device's thread calls them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "../wire.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

// What a loaded program keeps of a site of its own. While it lives, the site is retained.
struct LoadedSite {
  static xla::ffi::TypeId id;

  uint64_t site;
  int64_t traits;
  Kind kind;
  uint16_t flags;   // of its records
  uint32_t devices; // how many devices come to it, where that matters

  LoadedSite(int64_t site_id, int64_t traits, std::string_view description);
  LoadedSite(const LoadedSite &) = delete;
  ~LoadedSite();

  bool has(RecordTrait trait) const { return (traits & trait) != 0; }
  bool ordered() const { return kind == Kind::kOrdered; }
};

// The type of a LoadedSite; XLA wants to know it before the handlers.
void *LoadedSiteTypeId();
void *LoadedSiteTypeInfo();

const std::vector<Handler> &handlers();

// A device begins to count for itself. The tokens are those of the region, but for their index.
void PublishEnter(const Span &tokens, const Token &first, int32_t device, uint32_t devices, bool may_diverge);
// And ends it. They are those behind its last effects.
void PublishLeave(const Span &tokens, const Token &first, int32_t device);

// The handlers of asynchronous operations, those of stages that are theirs alone: for the table in handlers.cc.
std::vector<Handler> OperationHandlers();

// The handlers of a region: for the table in handlers.cc.
void *EnterHandler();
void *LeaveHandler();

} // namespace effects
