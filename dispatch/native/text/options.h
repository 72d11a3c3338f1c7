// The NumPy print options that native code follows. If others are in force, Python formats.
#pragma once

#include <cstdint>

namespace effects {

struct PrintOptions {
  int64_t threshold = 1000; // arrays with more elements are summarised
  int64_t edgeitems = 3;    // at least 1
  int64_t linewidth = 75;
  int precision = 8;
  bool suppress = false;
};

// The number of these options, which are kept forever. Number 0: NumPy's defaults.
uint32_t NumberOf(const PrintOptions &options);
const PrintOptions &PrintOptionsOf(uint32_t number);

} // namespace effects
