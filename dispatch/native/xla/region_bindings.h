// The bindings of the handlers that enter and leave regions, for every platform. A platform's own arguments come after
// `Device`, which gives the device's number.
#pragma once

#include <cstdint>

#include "../wire.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

template <typename Device>
auto BindEnter() {
  return xla::ffi::Ffi::Bind()
      .Attr<int64_t>(attribute::kOrdered)
      .Attr<int64_t>(attribute::kDevices)
      .Attr<bool>(attribute::kMayDiverge)
      .Attr<bool>(attribute::kHasGroups)
      .Attr<bool>(attribute::kCounted)
      .template Ctx<Device>();
}

template <typename Device>
auto BindLeave() {
  return xla::ffi::Ffi::Bind()
      .Attr<int64_t>(attribute::kOrdered)
      .Attr<bool>(attribute::kCounted)
      .template Ctx<Device>();
}

template <typename Device>
auto BindSkip() {
  return xla::ffi::Ffi::Bind().Attr<int64_t>(attribute::kCount).Attr<bool>(attribute::kCounted).template Ctx<Device>();
}

} // namespace effects
