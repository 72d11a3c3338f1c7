// The bindings of the handlers of asynchronous operations, for every platform: see region_bindings.h.
#pragma once

#include <string_view>

#include "dispatch/native/wire.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

template <typename Device>
auto BindKeep() {
  return xla::ffi::Ffi::Bind()
      .Attr<bool>(attribute::kByLane)
      .Attr<bool>(attribute::kOptional)
      .Attr<std::string_view>(attribute::kName)
      .template Ctx<Device>();
}

template <typename Device>
auto BindTake() {
  return xla::ffi::Ffi::Bind()
      .Attr<bool>(attribute::kByLane)
      .Attr<std::string_view>(attribute::kWhere)
      .template Ctx<Device>();
}

} // namespace effects
