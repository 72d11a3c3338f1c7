// A custom call that holds its program on the device until the test lets it go, and may fail then.
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {
std::mutex mutex;
std::condition_variable opened;
std::set<int64_t> open_gates;

ffi::Error Wait(int64_t gate, bool fails, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  std::unique_lock lock(mutex);
  opened.wait(lock, [&] { return open_gates.count(gate) != 0; });
  if (fails) return ffi::Error::Internal("boom");
  std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
  return ffi::Error::Success();
}
} // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    GateWait, Wait,
    ffi::Ffi::Bind().Attr<int64_t>("gate").Attr<bool>("fails").Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

extern "C" void OpenGate(int64_t gate) {
  {
    std::lock_guard lock(mutex);
    open_gates.insert(gate);
  }
  opened.notify_all();
}
