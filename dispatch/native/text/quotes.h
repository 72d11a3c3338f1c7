// What a text is inside of another: a string of JSON, or a cell of CSV.
#pragma once

#include <cstddef>
#include <string>

namespace effects {

// What begins at `begin`, UTF-8, becomes a string of JSON, in ASCII.
void QuoteString(std::string &out, size_t begin);

// What begins at `begin` becomes a cell, which has quotes around it only if it needs them.
void QuoteCell(std::string &out, size_t begin);

} // namespace effects
