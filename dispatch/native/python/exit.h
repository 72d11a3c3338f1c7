// The end of the process.
#pragma once

namespace effects {

// Sets the exit code of a process that would exit with 0, or with `always` of any process. 0 changes nothing.
void EndWith(int code, bool always);

} // namespace effects
