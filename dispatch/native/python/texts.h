// Texts of records that Python asks for.
#pragma once

#include <nanobind/nanobind.h>

namespace effects {

void DefineTexts(nanobind::module_ &m);

} // namespace effects
