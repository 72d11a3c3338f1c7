#include "format.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "array.h"
#include "digits.h"
#include "quotes.h"

namespace effects {
namespace {

template <typename T>
void AppendInteger(std::string &out, T value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

// Shows digits as Python and NumPy do: positional, or scientific with an exponent of at least two digits.
void AppendDigits(std::string &out, double value, const Digits &digits, bool positional) {
  const double magnitude = std::fabs(value);
  if (std::signbit(value)) out += '-';
  if (positional)
    AppendPositional(out, magnitude, digits, {});
  else
    AppendScientific(out, magnitude, digits, {}, 2);
  // NumPy ends with the point.
  if (positional && out.back() == '.')
    out += '0';
  else if (!positional && digits.count == 1)
    out.erase(out.rfind('.'), 1);
}

// The text of a number that is not finite.
bool AppendNotFinite(std::string &out, double value, Style style) {
  if (std::isfinite(value)) return false;
  if (style == Style::kJson)
    out += std::isnan(value) ? "\"NaN\"" : value < 0 ? "\"-Infinity\"" : "\"Infinity\"";
  else
    out += std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  return true;
}

// The magnitude from which NumPy uses scientific form.
template <typename T>
constexpr double kScientific = 1e16;
template <>
constexpr double kScientific<float> = 1e6;

// NumPy compares the number, Python counts digits: the float32 0.0001 is less than 0.0001.
bool IsPositional(double magnitude, double large) { return magnitude == 0 || (magnitude >= 1e-4 && magnitude < large); }

// A float in its shortest round-trip digits: as Python (a narrow number is widened first unless the style keeps its
// type) or as NumPy shows it.
template <typename T>
void AppendShortest(std::string &out, T number, Style style) {
  const double value = number;
  if (AppendNotFinite(out, value, style)) return;
  const Digits digits = style == Style::kFormat ? Shortest(std::fabs(value)) : Shortest(number);
  const bool positional = style == Style::kString ? IsPositional(std::fabs(value), kScientific<T>)
                                                  : digits.exponent >= -4 && digits.exponent < 16;
  AppendDigits(out, value, digits, positional);
}

template <typename T>
void AppendFloat(std::string &out, T number, const Piece &piece) {
  if (piece.conversion == 0) return AppendShortest(out, number, piece.style);
  const double value = number;
  if (AppendNotFinite(out, value, piece.style)) return;
  // Not printf: its decimal point depends on the locale.
  const auto form = piece.conversion == 'e'   ? std::chars_format::scientific
                    : piece.conversion == 'f' ? std::chars_format::fixed
                                              : std::chars_format::general;
  char buffer[512];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, form, piece.precision);
  out.append(buffer, result.ptr);
}

void AppendBool(std::string &out, bool value, Style style) {
  if (style == Style::kJson)
    out += value ? "true" : "false";
  else
    out += value ? "True" : "False";
}

} // namespace

void FormatScalar(std::string &out, const Piece &piece, const std::byte *at) {
  switch (piece.type) {
  case Scalar::kBool:
    return AppendBool(out, Load<uint8_t>(at) != 0, piece.style);
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
  case Scalar::kFloat32:
    return AppendFloat(out, Load<float>(at), piece);
  case Scalar::kFloat64:
    return AppendFloat(out, Load<double>(at), piece);
  case Scalar::kBfloat16:
    if (piece.style == Style::kString) return AppendBfloat16(out, Load<uint16_t>(at));
    return AppendFloat(out, static_cast<float>(FromBfloat16(Load<uint16_t>(at))), piece);
  case Scalar::kThread:
    return AppendInteger(out, Load<uint32_t>(at) >> kDomainBits);
  case Scalar::kDevice:
    return AppendInteger(out, PlaceOf(Load<int32_t>(at)));
  case Scalar::kLane:
    return; // not a value of the record
  }
}

bool IsRegular(const Plan &plan) {
  return plan.lanes.empty() && std::all_of(plan.pieces.begin(), plan.pieces.end(), [](const Piece &piece) {
           return piece.shape.empty() && piece.style != Style::kRepr;
         });
}

const std::byte *At(const Piece &piece, const std::byte *payload, const Lane &lane) {
  const std::byte *at = payload + piece.offset;
  for (size_t axis = 0; axis < piece.strides.size(); ++axis) at += lane[axis] * piece.strides[axis];
  return at;
}

namespace {

void AppendField(std::string &out, const Piece &piece, const std::byte *payload, const Lane &lane,
                 const PrintOptions &in_force) {
  if (piece.type == Scalar::kLane) return AppendInteger(out, lane[static_cast<size_t>(piece.offset)]);
  const std::byte *const at = At(piece, payload, lane);
  const PrintOptions &options = piece.options != nullptr ? *piece.options : in_force;
  if (piece.style == Style::kRepr) return FormatRepr(out, piece, at, options);
  if (piece.shape.empty()) return FormatScalar(out, piece, at);
  if (piece.style == Style::kJson) return FormatNested(out, piece, at);
  FormatArray(out, piece, at, options);
}

} // namespace

void Format(std::string &out, const Plan &plan, const std::byte *payload, const Lane &lane,
            const PrintOptions &in_force) {
  size_t begin = 0;
  for (const Piece &piece : plan.pieces) {
    out += piece.literal;
    if (piece.wrap == Wrap::kBegin) begin = out.size();
    if (piece.has_field) AppendField(out, piece, payload, lane, in_force);
    if (piece.wrap == Wrap::kEndString) QuoteString(out, begin);
    if (piece.wrap == Wrap::kEndLine)
      std::replace(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), '\n', ' ');
  }
}

} // namespace effects
