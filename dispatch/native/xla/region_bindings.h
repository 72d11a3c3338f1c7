// How the handlers that enter and leave regions are bound to their attributes, on every platform. What a platform adds
// comes behind the `Device`, which gives its number.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace effects {

template <typename Device>
auto BindEnter() {
  return xla::ffi::Ffi::Bind()
      .Attr<int64_t>("ordered")
      .Attr<int64_t>("devices")
      .Attr<bool>("apart")
      .Attr<bool>("parts")
      .Attr<bool>("skips")
      .Attr<bool>("counted")
      .template Ctx<Device>();
}

template <typename Device>
auto BindLeave() {
  return xla::ffi::Ffi::Bind().Attr<int64_t>("ordered").Attr<bool>("counted").template Ctx<Device>();
}

template <typename Device>
auto BindSkip() {
  return xla::ffi::Ffi::Bind().Attr<int64_t>("count").Attr<bool>("counted").template Ctx<Device>();
}

} // namespace effects
