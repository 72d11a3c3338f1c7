#include "digits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace effects {
namespace {

// Digits of "d.ddde[+-]xx".
Digits Read(const char *at, const char *end) {
  Digits digits{};
  for (; at != end && *at != 'e'; ++at)
    if (*at != '.') digits.at[digits.count++] = *at;
  if (at == end) return digits;
  if (*++at == '+') ++at;
  std::from_chars(at, end, digits.exponent);
  return digits;
}

template <typename T>
Digits ShortestOf(T value) {
  char text[64];
  return Read(text, std::to_chars(text, text + sizeof text, std::fabs(value), std::chars_format::scientific).ptr);
}

// The number of digits after the point, for a number whose shortest form has `there`.
int CountShown(int there, const Shown &shown) {
  if (there < shown.min_digits) return shown.min_digits;
  return shown.precision >= 0 && there > shown.precision ? shown.precision : there;
}

// Appends the exact value's digits, correctly rounded.
void AppendRounded(std::string &out, double magnitude, std::chars_format form, int precision) {
  char digits[512]; // up to 309 before the point, and some 100 behind it: see `_MOST_DIGITS` in effects/_model/text.py
  out.append(digits, std::to_chars(digits, digits + sizeof digits, magnitude, form, precision).ptr);
}

// Trims the digits from `begin` on, as `trim` says; there is no exponent after them.
void Trim(std::string &out, size_t begin, const Shown &shown) {
  size_t point = out.find('.', begin);
  if (point == std::string::npos) {
    point = out.size();
    out += '.';
  }
  if (shown.keep_zeros) {
    const int there = static_cast<int>(out.size() - point - 1);
    if (there < shown.min_digits) out.append(static_cast<size_t>(shown.min_digits - there), '0');
  } else {
    while (out.back() == '0') out.pop_back();
  }
}

} // namespace

double FromBfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void AppendBfloat16(std::string &out, uint16_t bits) {
  const double value = FromBfloat16(bits);
  char buffer[32];
  if (std::isnan(value))
    out += "nan"; // whatever its sign
  else
    out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::general, 6).ptr);
}

Digits Shortest(double value) { return ShortestOf(value); }

Digits Shortest(float value) { return ShortestOf(value); }

void AppendPositional(std::string &out, double magnitude, const Digits &digits, const Shown &shown) {
  const int there = std::max(0, digits.count - 1 - digits.exponent);
  const int count = CountShown(there, shown);
  if (count != there) {
    const size_t begin = out.size();
    AppendRounded(out, magnitude, std::chars_format::fixed, count);
    return Trim(out, begin, shown);
  }
  // The last digit is not 0, so there is nothing to trim.
  if (digits.exponent < 0) {
    out += "0.";
    out.append(static_cast<size_t>(-digits.exponent - 1), '0');
    out.append(digits.at, static_cast<size_t>(digits.count));
  } else {
    const int whole = digits.exponent + 1;
    out.append(digits.at, static_cast<size_t>(std::min(whole, digits.count)));
    if (digits.count < whole) out.append(static_cast<size_t>(whole - digits.count), '0');
    out += '.';
    if (there > 0) out.append(digits.at + whole, static_cast<size_t>(there));
  }
  if (shown.keep_zeros && there < shown.min_digits) out.append(static_cast<size_t>(shown.min_digits - there), '0');
}

void AppendScientific(std::string &out, double magnitude, const Digits &digits, const Shown &shown,
                      int exponent_digits) {
  const size_t begin = out.size();
  const int there = digits.count - 1;
  const int count = CountShown(there, shown);
  int exponent = digits.exponent;
  if (count != there) {
    AppendRounded(out, magnitude, std::chars_format::scientific, count);
    const size_t e = out.find('e', begin);
    exponent = std::atoi(out.c_str() + e + 1); // rounding may have changed it
    out.resize(e);
  } else {
    out += digits.at[0];
    if (there > 0) {
      out += '.';
      out.append(digits.at + 1, static_cast<size_t>(there));
    }
  }
  Trim(out, begin, shown);
  out += exponent < 0 ? "e-" : "e+";
  char text[8];
  const auto end = std::to_chars(text, text + sizeof text, std::abs(exponent)).ptr;
  const int length = static_cast<int>(end - text);
  if (length < exponent_digits) out.append(static_cast<size_t>(exponent_digits - length), '0');
  out.append(text, end);
}

} // namespace effects
