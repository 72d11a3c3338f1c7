// The layout of the wire, as data for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

// What wire.h lays down, by name, as effects/_model/wire.py reads it: numbers, and lists of names.
nanobind::dict Wire();

} // namespace effects
