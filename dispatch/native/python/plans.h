// How Python says what native code makes text of, and how: `native_text.py` and `print_options.py` of effects/_model.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "../text/format.h"

namespace effects {

// From a list of `Piece`s.
Plan ToPlan(nanobind::list pieces);

// The number of `PrintOptions` of Python's.
uint32_t ToNumberOfPrintOptions(nanobind::handle options);

} // namespace effects
