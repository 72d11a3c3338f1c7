// XLA FFI handlers: the calls of compiled CPU programs into the publisher. They throw no exception and take no Python
// lock. The device's thread calls them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "../wire.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

// The attributes of a call that publishes.
struct SiteAttributes {
  int64_t site, traits;
  std::string_view description;
  int64_t ahead = 0, together = 0, fail_as_one = 0, operands = 0;
};
// Throws std::invalid_argument if one is missing.
SiteAttributes ReadSite(const xla::ffi::Dictionary &attributes);

// A site of a loaded program. Retains the site while it lives.
struct LoadedSite {
  static xla::ffi::TypeId id;

  uint64_t site;
  int64_t traits;
  Kind kind;
  uint16_t flags;    // of the records
  uint32_t devices;  // the number of devices that reach the call, if that matters
  uint32_t ahead;    // the number of effects since the program last wrote the token
  uint32_t together; // the number of devices that continue together from the call; 0: each by itself
  bool fail_as_one;  // as for Together
  size_t operands;   // the number of its record's operands, if the call publishes several records
  std::vector<std::unique_ptr<LoadedSite>> others;
  std::shared_ptr<Filter> filter;

  explicit LoadedSite(const SiteAttributes &attributes);
  LoadedSite(const LoadedSite &) = delete;
  ~LoadedSite();

  bool has(RecordTrait trait) const { return (traits & trait) != 0; }
  bool ordered() const { return kind == Kind::kOrdered; }
  // True if its records have one value, sharded over all devices.
  bool has_whole_values() const { return has(kRecordHasShards) && has(kRecordIsReplicated); }

  // A device has reached an effect. With a mask, the first operand, there is no effect if no lane has it.
  Decision shows(int32_t device, const Token &token, const Span *operands) const {
    if (has(kRecordHasMask)) {
      const auto *lanes = static_cast<const uint8_t *>(operands[0].data);
      if (std::all_of(lanes, lanes + operands[0].size, [](uint8_t lane) { return lane == 0; }))
        return Decision::kLeaveOut;
    }
    return decide(device, token);
  }
  Decision decide(int32_t device, const Token &token) const {
    if (filter == nullptr) return Decision::kShow;
    const bool is_same = has(kRecordIsReplicated) && !InRegion(token);
    if (is_same && ordered()) return filter->shows_same(token);
    const bool is_own = !is_same && (InRegion(token) || devices > 1);
    const bool is_shown =
        is_same ? filter->shows_copy(device, token, devices) : filter->shows(is_own ? device : kAllDevices);
    return is_shown ? Decision::kShow : Decision::kLeaveOut;
  }

  // The token of the call's effect.
  DeviceToken token(const Span &given) const {
    DeviceToken token = LoadToken(given);
    token.token.index += ahead;
    return token;
  }
};

// The type of a LoadedSite; XLA needs it registered before the handlers.
void *LoadedSiteTypeId();
void *LoadedSiteTypeInfo();

const std::vector<Handler> &handlers();

// The stage that makes a LoadedSite, for handlers with a site.
void *LoadSiteHandler();

// The handlers of a region: for the table in handlers.cc.
void *EnterHandler();
void *LeaveHandler();
void *SkipHandler();

} // namespace effects
