// What the functions of the simulated driver have in common.
//
// It is stricter than the driver where the driver's documentation allows that: a host function that calls it ends the
// process, and host functions of all streams run one after the other. XLA and the library find that functions which are
// not here are missing.
#pragma once

#include <string>

#include "machine.h"

namespace simulated {

using Result = int;
constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidContext = 201,
                 kInvalidImage = 218, kNotFound = 500, kNotReady = 600;

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

inline Address AddressOf(const void *data) { return reinterpret_cast<Address>(data); }

} // namespace simulated
