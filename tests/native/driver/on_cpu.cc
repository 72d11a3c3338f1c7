// Handlers of CUDA as handlers of XLA's on a CPU: each device has a stream of the stand-in's, and memory that the host
// has too. A call is over when the stream has done what is in it, since XLA does not know of the stream. A library.
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "stand_in.h"
#include "xla/ffi/api/c_api.h"

namespace {

constexpr int kMostHandlers = 32;
XLA_FFI_Handler *wrapped[kMostHandlers];

thread_local void *current_stream = nullptr;

XLA_FFI_Error *GetStream(XLA_FFI_Stream_Get_Args *args) {
  args->stream = current_stream;
  return nullptr;
}

void *StreamOf(int device) {
  static std::mutex mutex;
  static std::map<int, void *> streams;
  std::lock_guard lock(mutex);
  void *&stream = streams[device];
  if (stream == nullptr) stream = StandIn_NewStream();
  return stream;
}

// XLA's functions, but for the one that gives the stream.
const XLA_FFI_Api *WithStreams(const XLA_FFI_Api *original) {
  static const XLA_FFI_Api *const table = [original] {
    auto *const memory = new char[original->struct_size];
    std::memcpy(memory, original, original->struct_size);
    auto *const api = reinterpret_cast<XLA_FFI_Api *>(memory);
    api->XLA_FFI_Stream_Get = &GetStream;
    return api;
  }();
  return table;
}

XLA_FFI_Error *Run(XLA_FFI_Handler *handler, XLA_FFI_CallFrame *frame) {
  if (frame->extension_start != nullptr || frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return handler(frame);
  const XLA_FFI_Api *const original = frame->api;
  XLA_FFI_DeviceOrdinal_Get_Args device{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, 0};
  if (XLA_FFI_Error *const error = original->XLA_FFI_DeviceOrdinal_Get(&device)) return error;
  void *const stream = current_stream = StreamOf(device.device_ordinal);
  frame->api = WithStreams(original);
  XLA_FFI_Error *const error = handler(frame);
  frame->api = original;
  StandIn_Synchronize(stream);
  return error;
}

template <int number>
XLA_FFI_Error *Wrapper(XLA_FFI_CallFrame *frame) {
  return Run(wrapped[number], frame);
}

template <int... numbers>
XLA_FFI_Handler *Take(int number, std::integer_sequence<int, numbers...>) {
  XLA_FFI_Handler *const all[] = {&Wrapper<numbers>...};
  return all[number];
}

} // namespace

// The handler of a CPU that calls this one with a stream; null if there are too many.
extern "C" void *OnCpu_Wrap(void *handler) {
  static int made = 0;
  if (made == kMostHandlers) return nullptr;
  wrapped[made] = reinterpret_cast<XLA_FFI_Handler *>(handler);
  return reinterpret_cast<void *>(Take(made++, std::make_integer_sequence<int, kMostHandlers>()));
}
