// What CUDA's handlers have in common: their errors, and what they put into the stream.
#pragma once

#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../xla/operands.h"
#include "host_failures.h"
#include "launch.h"

namespace effects::cuda {

// What an error of the driver's ends with.
inline constexpr char kRemedy[] =
    " Records are copied from the device by NVIDIA's driver. If an earlier kernel has failed, look at its error first: "
    "a device that has failed serves no more in this process.";

// Runs what launches; what it throws is the handler's error. `what`: what could not be done, and where.
template <typename Body>
xla::ffi::Error Guard(const std::string &what, Body &&body) {
  try {
    if (std::optional<std::string> failed = host_failures().take()) return xla::ffi::Error::Internal(*failed);
    body();
    return xla::ffi::Error::Success();
  } catch (const DriverError &error) {
    return xla::ffi::Error::Internal(what + " " + error.what() + kRemedy);
  } catch (const std::exception &error) {
    return xla::ffi::Error::Internal(what + " " + error.what());
  }
}

// Has `publish` called with copies of a call's operands, from `first` on.
inline void LaunchAll(Stream stream, xla::ffi::RemainingArgs args, size_t first, Publish publish) {
  const Driver &found = driver();
  Spans buffers(args, first);
  const InContextOf context(found, stream);
  Launch(found, stream, buffers.data(), buffers.size(), std::move(publish));
}

// Publishes what belongs to the program of the first token.
template <typename Body>
Publish InProgram(Body body) {
  return [body = std::move(body)](Span *operands, size_t count) {
    host_failures().run(operands, [&] { body(operands, count); });
  };
}

// As InProgram(), with results, which are zeros if it fails.
template <typename Body>
Compute WithResults(Body body) {
  return [body = std::move(body)](Span *operands, size_t count, const std::vector<Out> &results) {
    if (host_failures().run(operands, [&] { body(operands, count, results); })) return;
    for (const Out &result : results)
      if (result.size != 0) std::memset(result.data, 0, result.size);
  };
}

} // namespace effects::cuda
