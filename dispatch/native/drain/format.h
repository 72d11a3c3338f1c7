// Formats a record into text where the result is byte for byte what Python's str.format and NumPy give.
// Everything else is left to Python: a site gets a plan only if all its fields are simple.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../wire.h"

namespace effects {

// What a field shows: a scalar operand of this type, at this byte of the payload.
struct Piece {
  std::string literal; // comes before the field
  bool has_field = false;
  Scalar type = Scalar::kBool;
  uint64_t offset = 0;
  char conversion = 0; // 0: no specification; 'e', 'f', 'g': as in the specification
  int precision = 0;
};

using Plan = std::vector<Piece>;

// Appends the text of a record. Any thread.
void Format(std::string &out, const Plan &plan, const std::byte *payload);

} // namespace effects
