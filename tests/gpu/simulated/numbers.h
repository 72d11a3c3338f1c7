// Bits as integers and floats of a type, and back.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernel.h"

namespace simulated {

inline uint64_t Mask(unsigned bytes) { return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1; }

inline uint64_t Extend(uint64_t bits, const Type &type) {
  bits &= Mask(type.bytes);
  if (type.kind != 's' || type.bytes == 8) return bits;
  const uint64_t sign = uint64_t{1} << (8 * type.bytes - 1);
  return (bits ^ sign) - sign;
}

template <typename To, typename From>
To Bits(From from) {
  To to{};
  std::memcpy(&to, &from, std::min(sizeof to, sizeof from));
  return to;
}

inline double FloatOf(uint64_t bits, const Type &type) {
  if (type.kind == 'b') return Bits<float>(static_cast<uint32_t>(bits << 16));
  if (type.bytes == 2) return static_cast<double>(Bits<_Float16>(static_cast<uint16_t>(bits)));
  return type.bytes == 4 ? Bits<float>(static_cast<uint32_t>(bits)) : Bits<double>(bits);
}

// Rounds to the nearest. What comes from a double that was rounded to it before is rounded twice, which for sums and
// products of shorter types gives the same.
inline uint64_t BitsOf(double value, const Type &type) {
  if (type.bytes == 8) return Bits<uint64_t>(value);
  if (type.kind == 'f' && type.bytes == 2) return Bits<uint16_t>(static_cast<_Float16>(value));
  const auto bits = Bits<uint32_t>(static_cast<float>(value));
  if (type.bytes == 4) return bits;
  if (std::isnan(value)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff;
}

} // namespace simulated
