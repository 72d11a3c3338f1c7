// The text of an array, as NumPy's `str` gives it.
#pragma once

#include <cstddef>
#include <string>

#include "format.h"

namespace effects {

// Appends the text of an array, whose elements begin at `data` and lie in C order.
void FormatArray(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options);

} // namespace effects
