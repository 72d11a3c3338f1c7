// A handler that copies memory of the host to its result: what a callback with a large result is measured against.
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Error Copy(int64_t address, ffi::Result<ffi::AnyBuffer> to) {
  std::memcpy(to->untyped_data(), reinterpret_cast<const void *>(address), to->size_bytes());
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(copy_from_host, Copy, ffi::Ffi::Bind().Attr<int64_t>("address").Ret<ffi::AnyBuffer>());
