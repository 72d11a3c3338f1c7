// The code with which the process ends.
#pragma once

namespace effects {

// Instead of 0, the process ends with this code. 0 changes nothing.
void EndWith(int code);

} // namespace effects
