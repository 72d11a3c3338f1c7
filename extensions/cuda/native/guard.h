// The common parts of CUDA's handlers: their errors, and their launches.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dispatch/native/wire.h"
#include "dispatch/native/xla/host_failures.h"
#include "dispatch/native/xla/operands.h"
#include "launch.h"

namespace effects::cuda {

// The device's number in records, from a handler's arguments.
struct DeviceNumber {};

} // namespace effects::cuda

template <>
struct xla::ffi::CtxDecoding<effects::cuda::DeviceNumber> {
  using Type = int32_t;
  static std::optional<Type> Decode(const XLA_FFI_Api *api, XLA_FFI_ExecutionContext *ctx, DiagnosticEngine &engine) {
    const std::optional<int32_t> ordinal = CtxDecoding<DeviceOrdinal>::Decode(api, ctx, engine);
    return ordinal ? std::optional<Type>(*ordinal + effects::kFirstGpu) : std::nullopt;
  }
};

namespace effects::cuda {

// The last sentence of a driver's error.
inline constexpr char kRemedy[] =
    " Records are copied from the device by NVIDIA's driver. If an earlier kernel has failed, look at its error first: "
    "a device that has failed serves no more in this process.";

// Runs a launch; an exception is the handler's error. `what`: the failed action and its place.
template <typename Body>
xla::ffi::Error Guard(std::string_view what, Body &&body) {
  try {
    body();
    return xla::ffi::Error::Success();
  } catch (const DriverError &error) {
    return xla::ffi::Error::Internal(std::string(what) + " " + error.what() + kRemedy);
  } catch (const std::exception &error) {
    return xla::ffi::Error::Internal(std::string(what) + " " + error.what());
  }
}

// Calls `launch` so that `publish` gets copies of a call's operands from `first` on.
inline void LaunchAll(decltype(&Launch) launch, Stream stream, xla::ffi::RemainingArgs args, size_t first,
                      Publish publish) {
  const Driver &found = driver();
  Spans buffers(args, first);
  const InContextOf context(found, stream);
  launch(found, stream, buffers.data(), buffers.size(), std::move(publish));
}

// Publishes for the program of the first token.
template <typename Body>
Publish InProgram(Body body) {
  return [body = std::move(body)](Span *operands, size_t count) {
    host_failures().run(operands, kEffectLost, [&] { body(operands, count); });
  };
}

} // namespace effects::cuda
