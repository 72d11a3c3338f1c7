// Decimal digits of floating-point numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace effects {

template <typename T>
T Load(const std::byte *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A number of 16 bits that is the upper half of a `float`; and as it shows itself.
double FromBfloat16(uint16_t bits);
void AppendBfloat16(std::string &out, uint16_t bits);

// The fewest digits that a number's own type reads as that number, without its sign: d.ddd times ten to `exponent`.
struct Digits {
  char at[20];
  int count;
  int exponent;
};

Digits Shortest(double value);
Digits Shortest(float value);

// Which digits are shown: no more than tell the number from others of its type, unless `min_digits` are more. As of
// `numpy.format_float_positional` and `numpy.format_float_scientific`, whose `trim` is "k" where zeros are kept, and
// else ".".
struct Shown {
  int precision = -1;  // at most so many behind the point; -1: any number
  int min_digits = -1; // at least so many
  bool keep_zeros = false;
};

// Append a finite number without its sign. `magnitude` is its own, and `digits` its shortest.
void AppendPositional(std::string &out, double magnitude, const Digits &digits, const Shown &shown);
// `exponent_digits`: at least so many.
void AppendScientific(std::string &out, double magnitude, const Digits &digits, const Shown &shown,
                      int exponent_digits);

} // namespace effects
