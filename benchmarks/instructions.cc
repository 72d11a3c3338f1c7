// What a process that runs under callgrind asks of it: to forget what it has counted, and to write it into a file.
#include <valgrind/callgrind.h>

extern "C" void begin() {
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
}

extern "C" void end() {
  CALLGRIND_DUMP_STATS;
  CALLGRIND_STOP_INSTRUMENTATION;
}
