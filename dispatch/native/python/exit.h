// The end of the process.
#pragma once

namespace effects {

// Instead of 0, or `always`, the process ends with this code. 0 changes nothing.
void EndWith(int code, bool always);

} // namespace effects
