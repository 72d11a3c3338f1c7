// Formats a record into text where the result is byte for byte what Python's str.format and NumPy give.
// Everything else is left to Python: a site gets a plan only if all its fields are simple.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../wire.h"
#include "options.h"

namespace effects {

// What a field shows: an operand of this type, at this byte of the payload.
struct Piece {
  std::string literal; // comes before the field
  bool has_field = false;
  Scalar type = Scalar::kBool;
  uint64_t offset = 0;
  char conversion = 0; // 0: no specification; 'e', 'f', 'g': as in the specification
  int precision = 0;
  std::vector<int64_t> shape;            // of an array; a scalar has none
  std::vector<std::string> texts;        // of Scalar::kByte: what each of its values is
  const PrintOptions *options = nullptr; // for an array; null: those that are in force at the call
};

using Plan = std::vector<Piece>;

// Whether the texts of its records may differ in their number of lines.
bool HasArrays(const Plan &plan);

// Appends the text of a record. Any thread.
void Format(std::string &out, const Plan &plan, const std::byte *payload, const PrintOptions &options);

// Appends the text of one value without dimensions, as str.format shows it.
void FormatScalar(std::string &out, const Piece &piece, const std::byte *at);

} // namespace effects
