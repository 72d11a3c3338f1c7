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

// The number that so few digits stand for, exactly rounded: both sides of the division or product are exact.
double ValueOf(const Digits &digits) {
  double whole = 0;
  for (int i = 0; i < digits.count; ++i) whole = whole * 10 + (digits.at[i] - '0');
  const int scale = digits.exponent - (digits.count - 1);
  return scale < 0 ? whole / std::pow(10.0, -scale) : whole * std::pow(10.0, scale);
}

// The next greater number of so many digits.
Digits Next(Digits digits) {
  for (int i = digits.count - 1; i >= 0; --i) {
    if (digits.at[i] != '9') {
      ++digits.at[i];
      return digits;
    }
    digits.at[i] = '0';
  }
  digits.at[0] = '1';
  ++digits.exponent;
  return digits;
}

Digits WithoutZeros(Digits digits) {
  while (digits.count > 1 && digits.at[digits.count - 1] == '0') --digits.count;
  return digits;
}

// How many digits behind the point are shown, of a number whose shortest form has `there`.
int CountShown(int there, const Shown &shown) {
  if (!shown.unique) return shown.precision;
  if (there < shown.min_digits) return shown.min_digits;
  return shown.precision >= 0 && there > shown.precision ? shown.precision : there;
}

// Appends the exact value's digits, correctly rounded.
void AppendRounded(std::string &out, double magnitude, std::chars_format form, int precision) {
  char few[400]; // a `double` has up to 309 digits ahead of the point
  const auto result = std::to_chars(few, few + sizeof few, magnitude, form, precision);
  if (result.ec == std::errc()) {
    out.append(few, result.ptr);
    return;
  }
  std::string many(400 + static_cast<size_t>(precision), '\0');
  out.append(many.data(), std::to_chars(many.data(), many.data() + many.size(), magnitude, form, precision).ptr);
}

// What `trim` does to the digits that begin at `begin`, of which there are none behind the exponent.
void Trim(std::string &out, size_t begin, const Shown &shown) {
  size_t point = out.find('.', begin);
  if (point == std::string::npos) {
    point = out.size();
    out += '.';
  }
  if (shown.keep_zeros) {
    const int wanted = shown.unique ? shown.min_digits : shown.precision;
    const int there = static_cast<int>(out.size() - point - 1);
    if (there < wanted) out.append(static_cast<size_t>(wanted - there), '0');
  } else {
    while (out.back() == '0') out.pop_back();
  }
}

} // namespace

double ToDouble(Half value) {
  const int exponent = value.bits >> 10 & 31;
  const int mantissa = value.bits & 1023;
  double magnitude;
  if (exponent == 31)
    magnitude = mantissa == 0 ? HUGE_VAL : std::nan("");
  else
    magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (value.bits & 0x8000) != 0 ? -magnitude : magnitude;
}

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

// Decimals of five digits tell all numbers of 16 bits apart. What is read as this one lies no further away than half
// way to its neighbours; on half the way the one with an even mantissa is read. All of these are exact as `double`.
Digits Shortest(Half value) {
  const uint16_t bits = value.bits & 0x7FFF;
  if (bits == 0) return ShortestOf(0.0);
  const double magnitude = ToDouble(Half{bits});
  const double below = ToDouble(Half{static_cast<uint16_t>(bits - 1)});
  const double above = bits == 0x7BFF ? 65536.0 : ToDouble(Half{static_cast<uint16_t>(bits + 1)});
  const double least = (magnitude + below) / 2, most = (magnitude + above) / 2;
  const auto is_read = [&](const Digits &digits) {
    const double read = ValueOf(digits);
    return (bits & 1) == 0 ? read >= least && read <= most : read > least && read < most;
  };
  char text[64]; // of all its digits, of which there are no more than 21
  const auto end = std::to_chars(text, text + sizeof text, magnitude, std::chars_format::scientific, 24).ptr;
  const char *const e = std::find(text, end, 'e');
  int exponent = 0;
  std::from_chars(e[1] == '+' ? e + 2 : e + 1, end, exponent);
  for (int count = 1;; ++count) {
    Digits down{};
    down.count = count;
    down.exponent = exponent;
    down.at[0] = text[0];
    std::copy(text + 2, text + 1 + count, down.at + 1);
    const Digits up = Next(down);
    const bool reads_down = is_read(down), reads_up = is_read(up);
    if (!reads_down && !reads_up) continue;
    if (reads_down != reads_up) return WithoutZeros(reads_down ? down : up);
    const double to_down = magnitude - ValueOf(down), to_up = ValueOf(up) - magnitude;
    const bool is_even = (down.at[count - 1] - '0') % 2 == 0;
    return WithoutZeros(to_down < to_up || (to_down == to_up && is_even) ? down : up);
  }
}

void AppendPositional(std::string &out, double magnitude, const Digits &digits, const Shown &shown) {
  const int there = std::max(0, digits.count - 1 - digits.exponent);
  const int count = CountShown(there, shown);
  if (!shown.unique || count != there) {
    const size_t begin = out.size();
    AppendRounded(out, magnitude, std::chars_format::fixed, count);
    return Trim(out, begin, shown);
  }
  // The last digit is no zero, so that there is nothing to trim.
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
  if (!shown.unique || count != there) {
    AppendRounded(out, magnitude, std::chars_format::scientific, count);
    const size_t e = out.find('e', begin);
    exponent = std::atoi(out.c_str() + e + 1); // rounding may have made it another
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
