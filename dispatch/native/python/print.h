// Python's `print`, each call of which writes its text at once.
//
// Python's own writes each argument and each separator by itself, and between two of these another thread may write:
// the drain, for one.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

// A function that takes what `print` takes and shows what it shows, in one `write`. What it does not know it leaves to
// `original`, Python's own. With the Python lock; called once.
nanobind::object PrintAtOnce(nanobind::object original);

} // namespace effects
