// What a text is inside of another: a string of JSON.
#pragma once

#include <cstddef>
#include <string>

namespace effects {

// What begins at `begin`, UTF-8, becomes a string of JSON, in ASCII.
void QuoteString(std::string &out, size_t begin);

} // namespace effects
