// How Python says what native code makes text of, and how: `native_text.py` and `print_options.py` of effects/_model.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "../text/format.h"

namespace effects {

// From a `Plan` of Python's.
Plan ToPlan(nanobind::handle plan);

// The number of `PrintOptions` of Python's.
uint32_t ToNumberOfPrintOptions(nanobind::handle options);

} // namespace effects
