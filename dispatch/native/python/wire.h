// The layout of the wire, as data for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

// The constants of native/wire.h by name, for effects/_model/wire.py: numbers, and lists of names.
nanobind::dict Wire();

} // namespace effects
