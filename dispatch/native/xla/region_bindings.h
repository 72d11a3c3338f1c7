// How the handlers that enter and leave regions are bound to their attributes, on every platform. What a platform adds
// comes behind the `Device`, which gives its number.
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
