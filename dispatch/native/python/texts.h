// Texts of records that Python asks for.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "../text/format.h"

namespace effects {

// The classes by which Python describes texts: see effects/_model/text.py.

// From a `Plan` of Python's.
Plan ToPlan(nanobind::handle plan);

// The number of `PrintOptions` of Python's.
uint32_t ToNumberOfPrintOptions(nanobind::handle options);

void DefineTexts(nanobind::module_ &m);

} // namespace effects
