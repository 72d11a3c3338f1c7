// Calls of Python's functions.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

namespace nb = nanobind;

// f(token, *args, **kwargs), or without a token or names if there are none.
nb::object Call(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs);

} // namespace effects
