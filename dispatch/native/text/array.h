// The text of an array, as NumPy's `str` and `repr` give it and as JSON has it. The elements are at `data`, in C order.
#pragma once

#include <cstddef>
#include <string>

#include "format.h"

namespace effects {

void FormatArray(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options);

// Also for an array without dimensions.
void FormatRepr(std::string &out, const Piece &piece, const std::byte *data, const PrintOptions &options);

// As nested lists.
void FormatNested(std::string &out, const Piece &piece, const std::byte *data);

} // namespace effects
