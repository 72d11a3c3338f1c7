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
  // Its records have one value from all devices, each of which has shards of it.
  bool has_whole_values() const { return has(kRecordHasShards) && has(kRecordIsReplicated); }
};

// The type of a LoadedSite; XLA wants to know it before the handlers.
void *LoadedSiteTypeId();
void *LoadedSiteTypeInfo();

const std::vector<Handler> &handlers();

// The handlers of asynchronous operations, those of stages that are theirs alone: for the table in handlers.cc.
std::vector<Handler> OperationHandlers();

// The handlers of a region: for the table in handlers.cc.
void *EnterHandler();
void *LeaveHandler();

} // namespace effects
