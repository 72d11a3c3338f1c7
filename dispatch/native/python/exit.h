// The end of the process: with which code, and what is lost.
#pragma once

namespace effects {

// The drain has ended. If effects are published after this and not taken, the process says at its very end how
// many, and ends with this code instead of 0.
void WatchExit(int code);

// Instead of 0, or `always`, the process ends with this code. 0 changes nothing. After WatchExit().
void EndWith(int code, bool always);

} // namespace effects
