#include "exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace effects {
namespace {

std::atomic<int> exit_code{0};
std::atomic<bool> overrides{false};

void AtExit(int status, void *) {
  const int code = exit_code.load();
  if (code == 0 || (status != 0 && !overrides.load())) return;
  std::fflush(nullptr);
  _exit(code);
}

} // namespace

void EndWith(int code, bool always) {
  exit_code = code;
  overrides = always;
  [[maybe_unused]] static const int registered = on_exit(AtExit, nullptr);
}

} // namespace effects
