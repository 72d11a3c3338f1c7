#include "exit.h"

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../xla/runtime.h"

namespace effects {
namespace {

std::atomic<int> exit_code{0};
std::atomic<bool> overrides{false};
std::atomic<int> code_for_lost{0};
std::atomic<bool> registered{false};
std::atomic<uint64_t> untaken_before{0};

// How many records have been published and not taken.
uint64_t Untaken() {
  const Stats &stats = publisher().stats;
  return publisher().count_published().records - stats.released.load() - stats.dropped.load() - stats.discarded.load();
}

// Says how many were issued since the drain ended. Returns whether any may be an exit handler's: calls of ours wait for
// their effects there, so they are of a program that JAX dispatched.
bool TellLost() {
  if (publisher().refuses()) return false; // a forked child, in which another thread may have had a lock
  const auto lost = static_cast<int64_t>(Untaken() - untaken_before.load());
  if (lost <= 0) return false;
  std::fprintf(stderr,
               "%" PRId64 " effects that were issued while the process ended are lost: nothing replays them any more. "
               "Call `fx.effects_barrier()` in the exit handler that issues them, or end the thread that does.\n",
               lost);
  return !progress().plain_has_ended(drain().plain_opened());
}

void End(int status) {
  const bool lost = TellLost();
  int code = exit_code.load();
  if (code == 0 && lost) code = code_for_lost.load();
  if (code == 0 || (status != 0 && !overrides.load())) return;
  std::fflush(nullptr);
  _exit(code);
}

#if defined(__GLIBC__)
void AtExit(int status, void *) { End(status); }
#else
void AtExit() { // which code the process would end with is not known here
  End(0);
}
#endif

} // namespace

void WatchExit(int code) {
  code_for_lost = code;
  untaken_before = Untaken();
  if (registered.exchange(true)) return;
#if defined(__GLIBC__)
  on_exit(AtExit, nullptr);
#else
  std::atexit(AtExit);
#endif
}

void EndWith(int code, bool always) {
  exit_code = code;
  overrides = always;
}

} // namespace effects
