// How the handlers that keep values of asynchronous operations and take them are bound to their attributes, on every
// platform: see region_bindings.h.
#pragma once

#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace effects {

template <typename Device>
auto BindKeep() {
  return xla::ffi::Ffi::Bind().Attr<bool>("by_lane").Attr<bool>("optional").template Ctx<Device>();
}

template <typename Device>
auto BindTake() {
  return xla::ffi::Ffi::Bind().Attr<bool>("by_lane").Attr<std::string_view>("where").template Ctx<Device>();
}

} // namespace effects
