// What the functions of the simulated driver have in common.
//
// It is stricter than the driver where the driver's documentation allows that: a host function that calls it ends the
// process, host functions of all streams run one after the other, and what may wait for a device fails in a thread that
// captures a stream. XLA and the library find that functions which are not here are missing.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "machine.h"

namespace simulated {

using Result = int;
constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidContext = 201,
                 kInvalidImage = 218, kNotFound = 500, kNotReady = 600, kNotSupported = 801, kCaptureUnsupported = 900,
                 kCaptureInvalidated = 901, kCaptureMerge = 902, kCaptureUnmatched = 903, kCaptureUnjoined = 904,
                 kCaptureIsolation = 905, kCapturedEvent = 907, kCaptureWrongThread = 908;

struct Event;
struct Context {
  int device;
};
Context &ContextOf(int device);
// The calling thread's; null if it has none.
Context *current();
inline int device() { return current()->device; }

// Of each call that a host function may not make: ends the process in one.
void Called(const char *function);
#define CALLED_IN_CONTEXT(function)                                                                                    \
  Called(function);                                                                                                    \
  if (current() == nullptr) return kInvalidContext;

// A stream of zero is the device's own.
Stream &StreamOf(void *stream);

using Work = std::function<void()>;

// By the driver's numbers.
enum class NodeType { kKernel, kCopy, kFill, kHostFunction, kGraph, kEmpty, kConditional = 13 };

// Puts work into the stream. Where the stream is captured, it becomes a node of a graph and is not done.
Result Put(void *stream, NodeType type, Work work);

// Of each call that waits for the device, or asks it, or may do so: it fails where the calling thread captures a
// stream, and where this stream or event is captured, or a stream of this device. The capture is invalid from then on.
Result BreakCapture();
Result BreakCapture(const Stream &stream);
Result BreakCapture(const Event *event);
Result BreakCapture(const Context &context);
#define OUTSIDE_CAPTURE(...)                                                                                           \
  if (const Result refused = BreakCapture(__VA_ARGS__); refused != kSuccess) return refused;

// An event that is recorded in a captured stream stands for the nodes there, and a stream that waits for it is captured
// with these ahead. Empty: neither is captured.
std::optional<Result> RecordInCapture(const Event *event, void *stream);
std::optional<Result> WaitInCapture(void *stream, const Event *event);

// What nodes do, by what the driver is given for them.
struct Function;
Work KernelOf(Function *function, Dim grid, Dim block, unsigned shared, void **parameters);
Work CopyOf(Address to, Address from, size_t size);
template <typename Value>
Work FillOf(Address to, Value value, size_t count);

inline Address AddressOf(const void *data) { return reinterpret_cast<Address>(data); }

} // namespace simulated
