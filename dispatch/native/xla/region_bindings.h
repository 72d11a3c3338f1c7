// How the handlers that enter and leave regions are bound to their attributes, on every platform. What a platform adds
// comes behind the device.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace effects {

inline auto BindEnter() {
  return xla::ffi::Ffi::Bind()
      .Attr<int64_t>("ordered")
      .Attr<int64_t>("devices")
      .Attr<bool>("apart")
      .Attr<bool>("parts")
      .Attr<bool>("skips")
      .Attr<bool>("counted")
      .Ctx<xla::ffi::DeviceOrdinal>();
}

inline auto BindLeave() {
  return xla::ffi::Ffi::Bind().Attr<int64_t>("ordered").Attr<bool>("counted").Ctx<xla::ffi::DeviceOrdinal>();
}

} // namespace effects
