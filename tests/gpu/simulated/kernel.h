// A kernel as it is read: its instructions, and what they take and give.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace simulated {

// What an instruction takes its operands for.
struct Type {
  char kind = 'u'; // unsigned, signed, float, bfloat or predicate
  unsigned bytes = 4;
  bool is_pair = false; // two of them in 32 bits

  bool is_float() const { return kind == 'f' || kind == 'b'; }
};

enum class Space { kGeneric, kGlobal, kShared, kLocal, kParameter };

// What a thread reads or writes: a register, a number, or a property of the thread.
struct Operand {
  enum Kind { kNone, kRegister, kNumber, kProperty, kLocalAddress, kParameterAddress } kind = kNone;
  size_t index = 0;     // of the register or the property
  uint64_t number = 0;  // its bits; what is added to a register that is an address
  bool negated = false; // a predicate
};

enum Property { kTid, kNtid = 3, kCtaid = 6, kNctaid = 9, kLane = 12, kWarp, kNumProperties };

// A word of an instruction, as a number that is compared sooner.
constexpr uint64_t operator""_w(const char *text, size_t size) {
  uint64_t word = size;
  for (size_t i = 0; i < size; ++i) word = word * 131 + static_cast<unsigned char>(text[i]);
  return word;
}
inline uint64_t WordOf(const std::string &text) { return operator""_w(text.data(), text.size()); }

struct Instruction {
  std::string text;
  uint64_t name = 0;
  std::vector<uint64_t> says; // what stands behind the name
  Type type, from;            // of `cvt`: to and from
  Space space = Space::kGeneric;
  std::vector<Operand> to, operands;
  int guard = -1;
  bool guard_is_false = false;
  size_t target = 0; // of a branch

  bool has(uint64_t word) const { return std::find(says.begin(), says.end(), word) != says.end(); }
};

// Throws.
[[noreturn]] inline void Unknown(const std::string &what) {
  throw std::runtime_error("The interpreter does not know `" + what + "`.");
}

struct Kernel {
  std::vector<size_t> parameters;
  std::vector<unsigned> registers; // how many bytes each has
  std::vector<Instruction> code;
  size_t shared = 0, local = 0;
};

} // namespace simulated
