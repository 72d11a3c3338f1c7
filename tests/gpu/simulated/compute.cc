// What instructions compute that only compute.
#include <cmath>

#include "block.h"

namespace simulated {

bool Block::compare(const Thread &thread, const Instruction &now) const {
  const Operand &left = now.operands[0], &right = now.operands[1];
  const auto says = [&](std::initializer_list<uint64_t> words) {
    return std::any_of(words.begin(), words.end(), [&](uint64_t word) { return now.has(word); });
  };
  int order = 0;
  bool are_numbers = true;
  if (now.type.is_float()) {
    const double a = real(thread, left, now.type), b = real(thread, right, now.type);
    are_numbers = !std::isnan(a) && !std::isnan(b);
    if (now.has("num"_w) || now.has("nan"_w)) return are_numbers == now.has("num"_w);
    if (!are_numbers) return says({"equ"_w, "neu"_w, "ltu"_w, "leu"_w, "gtu"_w, "geu"_w});
    order = (a > b) - (a < b);
  } else {
    const uint64_t a = whole(thread, left, now.type), b = whole(thread, right, now.type);
    const bool is_signed = now.type.kind == 's';
    const bool less = is_signed ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
    order = a == b ? 0 : less ? -1 : 1;
  }
  return says({"eq"_w, "equ"_w})           ? order == 0
         : says({"ne"_w, "neu"_w})         ? order != 0
         : says({"lt"_w, "lo"_w, "ltu"_w}) ? order < 0
         : says({"le"_w, "ls"_w, "leu"_w}) ? order <= 0
         : says({"gt"_w, "hi"_w, "gtu"_w}) ? order > 0
                                           : order >= 0;
}

uint64_t Block::convert(const Thread &thread, const Instruction &now) const {
  const Type &to = now.type, &from = now.from;
  if (to.is_pair) // the second operand is the lower half
    return BitsOf(real(thread, now.operands[0], from), to) << 16 | BitsOf(real(thread, now.operands[1], from), to);
  const auto round = [&](double value) {
    return now.has("rni"_w)   ? std::nearbyint(value)
           : now.has("rzi"_w) ? std::trunc(value)
           : now.has("rmi"_w) ? std::floor(value)
           : now.has("rpi"_w) ? std::ceil(value)
                              : value;
  };
  if (from.is_float()) {
    double value = round(real(thread, now.operands[0], from));
    if (to.is_float())
      return BitsOf(now.has("sat"_w) ? std::clamp(std::isnan(value) ? 0.0 : value, 0.0, 1.0) : value, to);
    if (std::isnan(value)) return 0;
    const bool is_signed = to.kind == 's';
    const double most = std::ldexp(1.0, static_cast<int>(8 * to.bytes - is_signed)), least = is_signed ? -most : 0.0;
    if (value >= most) return Mask(to.bytes) >> is_signed;
    if (value <= least) return is_signed ? Extend(uint64_t{1} << (8 * to.bytes - 1), to) : 0;
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(value)) : static_cast<uint64_t>(value);
  }
  const uint64_t value = whole(thread, now.operands[0], from);
  if (to.is_float()) {
    if (to.bytes == 4) // in one step, since a long integer has more digits than a double
      return Bits<uint32_t>(from.kind == 's' ? static_cast<float>(static_cast<int64_t>(value))
                                             : static_cast<float>(value));
    return BitsOf(from.kind == 's' ? static_cast<double>(static_cast<int64_t>(value)) : static_cast<double>(value), to);
  }
  return Extend(value, to);
}

// One value; `shift`: of which half of a pair.
double Block::compute_real(const Thread &thread, const Instruction &now, const Type &type, unsigned shift) const {
  const auto operand = [&](size_t i) {
    return FloatOf(bits(thread, now.operands.at(i)) >> shift & Mask(type.bytes), type);
  };
  const uint64_t name = now.name;
  const bool is_single = type.bytes == 4;
  const auto rounded = [&](auto f, double a, double b) -> double {
    return is_single ? f(static_cast<float>(a), static_cast<float>(b)) : f(a, b);
  };
  const double a = operand(0);
  if (name == "neg"_w) return -a;
  if (name == "abs"_w) return std::fabs(a);
  if (name == "sqrt"_w) return std::sqrt(a);
  if (name == "rsqrt"_w) return 1 / std::sqrt(a);
  if (name == "rcp"_w) return 1 / a;
  if (name == "ex2"_w) return is_single ? std::exp2(static_cast<float>(a)) : std::exp2(a);
  if (name == "lg2"_w) return is_single ? std::log2(static_cast<float>(a)) : std::log2(a);
  if (name == "sin"_w) return std::sin(a);
  if (name == "cos"_w) return std::cos(a);
  if (name == "tanh"_w) return std::tanh(a);
  const double b = operand(1);
  if (name == "add"_w) return rounded([](auto x, auto y) { return x + y; }, a, b);
  if (name == "sub"_w) return rounded([](auto x, auto y) { return x - y; }, a, b);
  if (name == "mul"_w) return rounded([](auto x, auto y) { return x * y; }, a, b);
  if (name == "div"_w) return rounded([](auto x, auto y) { return x / y; }, a, b);
  if (name == "copysign"_w) return std::copysign(b, a);
  if (name == "min"_w || name == "max"_w) {
    if (std::isnan(a) || std::isnan(b)) return now.has("NaN"_w) ? std::nan("") : std::isnan(a) ? b : a;
    const bool a_first = a < b || (a == b && std::signbit(a));
    return a_first == (name == "min"_w) ? a : b;
  }
  if (name == "fma"_w || name == "mad"_w)
    return is_single ? std::fma(static_cast<float>(a), static_cast<float>(b), static_cast<float>(operand(2)))
                     : std::fma(a, b, operand(2));
  Unknown(now.text);
}

// What an instruction that only computes gives; nothing: it is another kind of instruction.
std::optional<uint64_t> Block::compute(Thread &thread, const Instruction &now) const {
  const uint64_t name = now.name;
  const Type &type = now.type;
  const auto operand = [&](size_t i) { return whole(thread, now.operands.at(i), type); };
  const auto plain = [&](size_t i) { return static_cast<uint32_t>(bits(thread, now.operands.at(i))); };
  const unsigned width = 8 * type.bytes;
  const bool is_signed = type.kind == 's';

  if (name == "cvt"_w) return convert(thread, now);
  if (name == "selp"_w) return plain(2) & 1 ? operand(0) : operand(1);
  if (name == "setp"_w || name == "set"_w) {
    bool is_true = compare(thread, now);
    if (now.operands.size() > 2) {
      const bool other = plain(2) & 1;
      is_true = now.has("and"_w) ? is_true && other : now.has("or"_w) ? is_true || other : is_true != other;
    }
    return name == "setp"_w ? is_true : is_true ? 0xffffffff : 0;
  }
  if (name == "testp"_w) {
    const double value = real(thread, now.operands[0], type);
    return now.has("finite"_w)       ? std::isfinite(value)
           : now.has("infinite"_w)   ? std::isinf(value)
           : now.has("notanumber"_w) ? std::isnan(value)
                                     : !std::isnan(value);
  }
  if (name == "mov"_w) {
    // Several registers become one, the first its lowest bits.
    uint64_t value = 0;
    const unsigned each = width / static_cast<unsigned>(now.operands.size());
    for (size_t i = 0; i < now.operands.size(); ++i)
      value |= (bits(thread, now.operands[i]) & Mask(each / 8)) << (i * each % 64);
    return type.kind == 'p' ? plain(0) & 1 : value;
  }
  if (name == "cvta"_w) {
    const auto base = reinterpret_cast<Address>(shared_.data());
    const uint64_t address = bits(thread, now.operands[0]);
    return now.space != Space::kShared ? address : now.has("to"_w) ? address - base : address + base;
  }
  if (type.is_float()) {
    if (!type.is_pair) return BitsOf(compute_real(thread, now, type, 0), type);
    return BitsOf(compute_real(thread, now, type, 0), type) | BitsOf(compute_real(thread, now, type, 16), type) << 16;
  }

  if (name == "add"_w || name == "addc"_w || name == "sub"_w || name == "subc"_w || name == "mad"_w ||
      name == "madc"_w || name == "mul"_w) {
    const bool takes_carry = name == "addc"_w || name == "subc"_w || name == "madc"_w;
    const bool adds = name == "add"_w || name == "addc"_w, subtracts = name == "sub"_w || name == "subc"_w;
    using Wide = unsigned __int128;
    const auto wide = [&](uint64_t x) { return is_signed ? static_cast<Wide>(static_cast<int64_t>(x)) : Wide{x}; };
    const Wide mask = Mask(type.bytes);
    Wide value = wide(operand(0));
    if (!adds && !subtracts) {
      value *= wide(operand(1));
      if (now.has("hi"_w))
        value = is_signed ? static_cast<Wide>(static_cast<__int128>(value) >> width) : value >> width;
      if (now.has("wide"_w)) {
        const Type twice{type.kind, 2 * type.bytes};
        return static_cast<uint64_t>(value) + (name == "mul"_w ? 0 : whole(thread, now.operands[2], twice));
      }
      if (name == "mul"_w) return static_cast<uint64_t>(value);
      value = (value & mask) + (wide(operand(2)) & mask);
    } else {
      const Wide other = wide(operand(1)) & mask;
      value = adds ? (value & mask) + other : (value & mask) - other;
    }
    if (takes_carry) value = subtracts ? value - thread.carry : value + thread.carry;
    if (now.has("cc"_w)) thread.carry = (value >> width & 1) != 0;
    return static_cast<uint64_t>(value);
  }
  if (name == "div"_w || name == "rem"_w) {
    const uint64_t a = operand(0), b = operand(1);
    if (b == 0) return name == "div"_w ? ~uint64_t{0} : a;
    if (!is_signed) return name == "div"_w ? a / b : a % b;
    if (b == ~uint64_t{0}) return name == "div"_w ? 0 - a : 0;
    const auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
    return static_cast<uint64_t>(name == "div"_w ? x / y : x % y);
  }
  if (name == "min"_w || name == "max"_w) {
    const uint64_t a = operand(0), b = operand(1);
    const bool less = is_signed ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
    return less == (name == "min"_w) ? a : b;
  }
  if (name == "abs"_w) return is_signed && static_cast<int64_t>(operand(0)) < 0 ? 0 - operand(0) : operand(0);
  if (name == "neg"_w) return 0 - operand(0);
  if (name == "and"_w) return operand(0) & operand(1);
  if (name == "or"_w) return operand(0) | operand(1);
  if (name == "xor"_w) return operand(0) ^ operand(1);
  if (name == "not"_w) return type.kind == 'p' ? !operand(0) : ~operand(0);
  if (name == "cnot"_w) return operand(0) == 0;
  if (name == "shl"_w) return plain(1) >= width ? 0 : operand(0) << plain(1);
  if (name == "shr"_w) {
    const uint64_t by = std::min<uint64_t>(plain(1), width);
    if (is_signed) return static_cast<uint64_t>(static_cast<int64_t>(operand(0)) >> std::min<uint64_t>(by, 63));
    return by >= width ? 0 : operand(0) >> by;
  }
  if (name == "shf"_w) {
    const uint64_t both = uint64_t{plain(1)} << 32 | plain(0);
    const uint32_t by = now.has("wrap"_w) ? plain(2) & 31 : std::min<uint32_t>(plain(2), 32);
    return now.has("l"_w) ? both << by >> 32 : both >> by;
  }
  if (name == "bfe"_w) {
    const unsigned first = plain(1) & 0xff, count = plain(2) & 0xff;
    const auto bit = [&](unsigned at) { return at < width ? operand(0) >> at & 1 : is_signed ? operand(0) >> 63 : 0; };
    uint64_t value = 0;
    for (unsigned i = 0; i < width && count > 0; ++i)
      if (i < count || is_signed) value |= bit(first + std::min(i, count - 1)) << i;
    return value;
  }
  if (name == "bfi"_w) {
    const unsigned first = plain(2) & 0xff, count = plain(3) & 0xff;
    uint64_t value = operand(1);
    for (unsigned i = 0; i < count && first + i < width; ++i)
      value = (value & ~(uint64_t{1} << (first + i))) | (operand(0) >> i & 1) << (first + i);
    return value;
  }
  if (name == "prmt"_w) {
    const uint64_t both = uint64_t{plain(1)} << 32 | plain(0);
    uint32_t value = 0;
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned which = plain(2) >> (4 * i) & 15;
      uint32_t byte = both >> (8 * (which & 7)) & 0xff;
      if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      value |= byte << (8 * i);
    }
    return value;
  }
  if (name == "lop3"_w) {
    uint32_t value = 0;
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned row = (plain(0) >> i & 1) << 2 | (plain(1) >> i & 1) << 1 | (plain(2) >> i & 1);
      value |= (plain(3) >> row & 1) << i;
    }
    return value;
  }
  if (name == "popc"_w) return static_cast<uint64_t>(__builtin_popcountll(operand(0)));
  if (name == "clz"_w)
    return operand(0) == 0 ? width : static_cast<uint64_t>(__builtin_clzll(operand(0))) - (64 - width);
  if (name == "bfind"_w) return operand(0) == 0 ? 0xffffffff : 63 - static_cast<uint64_t>(__builtin_clzll(operand(0)));
  if (name == "brev"_w) {
    uint64_t value = 0;
    for (unsigned i = 0; i < width; ++i) value |= (operand(0) >> i & 1) << (width - 1 - i);
    return value;
  }
  return std::nullopt;
}

} // namespace simulated
