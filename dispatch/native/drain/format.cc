#include "format.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace effects {
namespace {

template <typename T>
T Load(const std::byte *at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void AppendInteger(std::string &out, T value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

// A float as Python's repr() shows it: the shortest digits that read back as the same value, positional for magnitudes
// in [1e-4, 1e16), else scientific with an exponent of at least two digits. An array without dimensions that is
// formatted without a specification becomes a Python float first, a narrow one too.
void AppendShortest(std::string &out, double value) {
  char buffer[512];
  const double magnitude = std::fabs(value);
  if (magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16)) {
    // Shortest digits in scientific form, laid out by hand: to_chars' fixed form prints large values exactly, while
    // repr() pads the shortest digits with zeros.
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
    const char *at = buffer;
    if (*at == '-') {
      out += '-';
      ++at;
    }
    std::string digits(1, *at++);
    if (*at == '.')
      for (++at; *at != 'e'; ++at) digits += *at;
    int exponent = 0;
    ++at; // 'e'
    if (*at == '+') ++at;
    std::from_chars(at, end, exponent);
    if (exponent < 0) {
      out += "0.";
      out.append(static_cast<size_t>(-exponent - 1), '0');
      out += digits;
    } else {
      const size_t whole = static_cast<size_t>(exponent) + 1;
      if (digits.size() <= whole) {
        out += digits;
        out.append(whole - digits.size(), '0');
        out += ".0";
      } else {
        out.append(digits, 0, whole);
        out += '.';
        out.append(digits, whole, std::string::npos);
      }
    }
    return;
  }
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  out.append(buffer, end);
}

void AppendDouble(std::string &out, double value, const Piece &piece) {
  if (std::isnan(value)) {
    out += "nan";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-inf" : "inf";
    return;
  }
  if (piece.conversion == 0) return AppendShortest(out, value);
  // Not printf: its decimal point depends on the locale.
  const auto form = piece.conversion == 'e'   ? std::chars_format::scientific
                    : piece.conversion == 'f' ? std::chars_format::fixed
                                              : std::chars_format::general;
  char buffer[512];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, form, piece.precision);
  out.append(buffer, result.ptr);
}

void FormatField(std::string &out, const Piece &piece, const std::byte *at) {
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
  case Scalar::kFloat32:
    return AppendDouble(out, Load<float>(at), piece);
  case Scalar::kFloat64:
    return AppendDouble(out, Load<double>(at), piece);
  }
}

} // namespace

void Format(std::string &out, const Plan &plan, const std::byte *payload) {
  for (const Piece &piece : plan) {
    out += piece.literal;
    if (piece.has_field) FormatField(out, piece, payload + piece.offset);
  }
}

} // namespace effects
