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

// A bfloat16: the upper half of a `float`.
double FromBfloat16(uint16_t bits);
void AppendBfloat16(std::string &out, uint16_t bits);

// The shortest digits that round-trip in the number's type, without the sign: d.ddd times ten to `exponent`.
struct Digits {
  char at[20];
  int count;
  int exponent;
};

Digits Shortest(double value);
Digits Shortest(float value);

// The digits to show: the shortest that round-trip, or `min_digits` if these are more. As in
// `numpy.format_float_positional` and `numpy.format_float_scientific`, with `trim` "k" if zeros are kept, else ".".
struct Shown {
  int precision = -1;  // the most digits after the point; -1: any number
  int min_digits = -1; // at least so many
  bool keep_zeros = false;
};

// Append a finite number without its sign. `digits`: the shortest digits of `magnitude`.
void AppendPositional(std::string &out, double magnitude, const Digits &digits, const Shown &shown);
// `exponent_digits`: the fewest digits of the exponent.
void AppendScientific(std::string &out, double magnitude, const Digits &digits, const Shown &shown,
                      int exponent_digits);

} // namespace effects
