// The text of an array, as NumPy's `str` and `repr` give it and as JSON has it. Its elements begin at `data` and lie in
// C order.
#pragma once

#include <cstddef>
#include <string>

#include "format.h"

namespace effects {

void FormatArray(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options);

// Of what has no dimensions, too.
void FormatRepr(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options);

// As lists in lists.
void FormatNested(std::string &out, const Piece &piece, const std::byte *data);

} // namespace effects
