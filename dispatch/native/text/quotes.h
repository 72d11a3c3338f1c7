// Quoting of a text as a string of JSON.
#pragma once

#include <cstddef>
#include <string>

namespace effects {

// Turns the UTF-8 text from `begin` on into a string of JSON, in ASCII.
void QuoteString(std::string &out, size_t begin);

} // namespace effects
