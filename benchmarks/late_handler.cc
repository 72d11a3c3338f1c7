// A handler that answers later, as one does that waits for a device, a disk or a network.
#include <chrono>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

static ffi::Future Late(ffi::Buffer<ffi::F32>, double seconds, ffi::ResultBuffer<ffi::F32> y) {
  ffi::Promise promise;
  ffi::Future future(promise);
  std::thread([promise, seconds, y]() mutable {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    y->typed_data()[0] = 1;
    promise.SetAvailable();
  }).detach();
  return future;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    late, Late, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Attr<double>("seconds").Ret<ffi::Buffer<ffi::F32>>());
