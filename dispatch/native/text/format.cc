#include "format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "array.h"
#include "digits.h"

namespace effects {
namespace {

template <typename T>
void AppendInteger(std::string &out, T value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

// A float as Python's repr() shows it: the shortest digits that read back as the same value, positional for magnitudes
// in [1e-4, 1e16), else scientific with an exponent of at least two digits. An array without dimensions that is
// formatted without a specification becomes a Python float first, a narrow one too.
void AppendShortest(std::string &out, double value, bool whole_as_float = true) {
  const double magnitude = std::fabs(value);
  if (std::signbit(value)) out += '-';
  const Digits digits = Shortest(magnitude);
  const bool positional = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  if (positional)
    AppendPositional(out, magnitude, digits, {});
  else
    AppendScientific(out, magnitude, digits, {}, 2);
  // A point with nothing behind it is NumPy's way.
  if (positional && out.back() == '.')
    whole_as_float ? out.push_back('0') : out.pop_back();
  else if (!positional && digits.count == 1)
    out.erase(out.rfind('.'), 1);
}

// What is not finite, if it is that.
bool AppendNotFinite(std::string &out, double value) {
  if (std::isfinite(value)) return false;
  out += std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  return true;
}

void AppendDouble(std::string &out, double value, const Piece &piece) {
  if (AppendNotFinite(out, value)) return;
  if (piece.conversion == 0) return AppendShortest(out, value);
  // Not printf: its decimal point depends on the locale.
  const auto form = piece.conversion == 'e'   ? std::chars_format::scientific
                    : piece.conversion == 'f' ? std::chars_format::fixed
                                              : std::chars_format::general;
  char buffer[512];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, form, piece.precision);
  out.append(buffer, result.ptr);
}

// As Python's repr() of a complex number: without a real part of +0, and with parentheses otherwise.
void AppendComplex(std::string &out, double real, double imaginary) {
  const bool both = real != 0 || std::signbit(real);
  if (both) {
    out += '(';
    if (!AppendNotFinite(out, real)) AppendShortest(out, real, false);
    if (!std::signbit(imaginary) || std::isnan(imaginary)) out += '+';
  }
  if (!AppendNotFinite(out, imaginary)) AppendShortest(out, imaginary, false);
  out += both ? "j)" : "j";
}

} // namespace

void FormatScalar(std::string &out, const Piece &piece, const std::byte *at) {
  switch (piece.type) {
  case Scalar::kBool:
    out += Load<uint8_t>(at) ? "True" : "False";
    return;
  case Scalar::kInt8:
    return AppendInteger(out, static_cast<int>(Load<int8_t>(at)));
  case Scalar::kInt16:
    return AppendInteger(out, Load<int16_t>(at));
  case Scalar::kInt32:
    return AppendInteger(out, Load<int32_t>(at));
  case Scalar::kInt64:
    return AppendInteger(out, Load<int64_t>(at));
  case Scalar::kUint8:
    return AppendInteger(out, static_cast<unsigned>(Load<uint8_t>(at)));
  case Scalar::kUint16:
    return AppendInteger(out, Load<uint16_t>(at));
  case Scalar::kUint32:
    return AppendInteger(out, Load<uint32_t>(at));
  case Scalar::kUint64:
    return AppendInteger(out, Load<uint64_t>(at));
  case Scalar::kFloat16:
    return AppendDouble(out, ToDouble(Load<Half>(at)), piece);
  case Scalar::kFloat32:
    return AppendDouble(out, Load<float>(at), piece);
  case Scalar::kFloat64:
    return AppendDouble(out, Load<double>(at), piece);
  case Scalar::kComplex64:
    return AppendComplex(out, Load<float>(at), Load<float>(at + sizeof(float)));
  case Scalar::kComplex128:
    return AppendComplex(out, Load<double>(at), Load<double>(at + sizeof(double)));
  case Scalar::kBfloat16:
    return AppendDouble(out, FromBfloat16(Load<uint16_t>(at)), piece);
  case Scalar::kByte:
    out += piece.texts[Load<uint8_t>(at)];
    return;
  }
}

bool HasArrays(const Plan &plan) {
  return std::any_of(plan.begin(), plan.end(), [](const Piece &piece) { return !piece.shape.empty(); });
}

void Format(std::string &out, const Plan &plan, const std::byte *payload, const PrintOptions &options) {
  for (const Piece &piece : plan) {
    out += piece.literal;
    if (!piece.has_field) continue;
    if (piece.shape.empty())
      FormatScalar(out, piece, payload + piece.offset);
    else
      FormatArray(out, piece, payload + piece.offset, piece.options != nullptr ? *piece.options : options);
  }
}

} // namespace effects
