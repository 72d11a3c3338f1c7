// A handler that returns at once: what an effect that is left out is measured against. It is bound to what a record's
// handler needs: the site's attributes, the device, the token and the operands.
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error Nothing(ffi::Dictionary, int32_t, ffi::Buffer<ffi::U32>, ffi::RemainingArgs,
                          ffi::Result<ffi::Buffer<ffi::U32>>) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(nothing, Nothing,
                              ffi::Ffi::Bind()
                                  .Attrs()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>());
