// XLA's functions as the user's handler sees them: some are ours, so that an error names its call, and the handler can
// publish.
//
// Any thread may call everything here.
#pragma once

#include <string>

#include "xla/ffi/api/ffi.h"

namespace effects {

// The functions for a handler; made of XLA's at the first call. A process may have several: jaxlib's, and plugins'.
const XLA_FFI_Api *OverlayOf(const XLA_FFI_Api *original);

// The device on which a call runs.
int32_t DeviceOf(const XLA_FFI_Api *functions, XLA_FFI_ExecutionContext *context);

// The text of a failure for XLA. The failure itself is kept under the number in it.
std::string DescribeFailure(const std::string &target, const std::string &where, int code, const std::string &message);

// An error that says whose it is, of the XLA whose functions these are.
XLA_FFI_Error *Fail(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                    XLA_FFI_Error_Code code, const std::string &message);
// In place of the handler's, which it frees.
XLA_FFI_Error *FailWith(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                        XLA_FFI_Error *error);

} // namespace effects
