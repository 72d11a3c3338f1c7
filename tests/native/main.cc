// Runs the native tests: `--list` prints their names, a name runs that test, and nothing runs all.
#include <cstdio>
#include <cstring>

#include "check.h"

int main(int count, char **arguments) {
  const char *const only = count > 1 ? arguments[1] : nullptr;
  const bool lists = only != nullptr && std::strcmp(only, "--list") == 0;
  bool found = only == nullptr || lists;
  for (const check::Test &test : check::Tests()) {
    if (!lists && only != nullptr && test.name != only) continue;
    found = true;
    // Before the test, so that the output of a run that hangs or dies names it.
    std::printf("%s\n", test.name.c_str());
    std::fflush(stdout);
    check::seed = 0;
    if (!lists) test.run();
  }
  if (!found) std::fprintf(stderr, "There is no test %s.\n", only);
  return found ? 0 : 2;
}
