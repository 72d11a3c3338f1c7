// The XLA functions of the user's handlers: some are replaced by ours, so that an error names its call, and a handler
// can publish.
//
// Any thread may call everything here.
#pragma once

#include <string>

#include "xla/ffi/api/ffi.h"

namespace effects {

// The functions for a handler, copied from its XLA's at the first call. A process may have several XLAs: jaxlib's, and
// plugins'.
const XLA_FFI_Api *OverlayOf(const XLA_FFI_Api *original);

// The device on which a call runs.
int32_t DeviceOf(const XLA_FFI_Api *functions, XLA_FFI_ExecutionContext *context);

// The text of a failure for XLA. The failure itself is kept under the number in it.
std::string DescribeFailure(const std::string &target, const std::string &where, int code, const std::string &message);

// An error that names its call, for the XLA of these functions.
XLA_FFI_Error *Fail(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                    XLA_FFI_Error_Code code, const std::string &message);
// The same in place of a handler's error, which is freed.
XLA_FFI_Error *FailWith(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                        XLA_FFI_Error *error);

} // namespace effects
