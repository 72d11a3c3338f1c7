#include "exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace effects {
namespace {

std::atomic<int> exit_code{0};

#if defined(__GLIBC__)
void AtExit(int status, void *) {
  if (status != 0) return;
  std::fflush(nullptr);
  _exit(exit_code);
}
#else
void AtExit() { // which code the process would end with is not known here
  std::fflush(nullptr);
  _exit(exit_code);
}
#endif

} // namespace

void EndWith(int code) {
  if (exit_code.exchange(code) != 0 || code == 0) return;
#if defined(__GLIBC__)
  on_exit(AtExit, nullptr);
#else
  std::atexit(AtExit);
#endif
}

} // namespace effects
