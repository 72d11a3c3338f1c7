#include "ptx.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>
#include <utility>

namespace simulated {
namespace {

// What an instruction takes its operands for.
struct Type {
  char kind = 'u'; // unsigned, signed, float, bfloat or predicate
  unsigned bytes = 4;
  bool is_pair = false; // two of them in 32 bits

  bool is_float() const { return kind == 'f' || kind == 'b'; }
};

std::optional<Type> TypeOf(const std::string &name) {
  static const std::map<std::string, Type> types = [] {
    std::map<std::string, Type> all{
        {"pred", {'p', 1}}, {"bf16", {'b', 2}}, {"f16x2", {'f', 2, true}}, {"bf16x2", {'b', 2, true}}};
    for (unsigned bytes : {1, 2, 4, 8})
      for (const char kind : {'u', 's', 'b', 'f'})
        if (kind != 'f' || bytes > 1) all[kind + std::to_string(8 * bytes)] = {kind == 'b' ? 'u' : kind, bytes};
    return all;
  }();
  const auto it = types.find(name);
  return it == types.end() ? std::nullopt : std::optional(it->second);
}

enum class Space { kGeneric, kGlobal, kShared, kLocal, kParameter };

// What a thread reads or writes: a register, a number, or a property of the thread.
struct Operand {
  enum Kind { kNone, kRegister, kNumber, kProperty, kLocalAddress, kParameterAddress } kind = kNone;
  size_t index = 0;     // of the register or the property
  uint64_t number = 0;  // its bits; what is added to a register that is an address
  bool negated = false; // a predicate
};

enum Property { kTid, kNtid = 3, kCtaid = 6, kNctaid = 9, kLane = 12, kWarp, kZero };

// A word of an instruction, as a number that is compared sooner.
constexpr uint64_t operator""_w(const char *text, size_t size) {
  uint64_t word = size;
  for (size_t i = 0; i < size; ++i) word = word * 131 + static_cast<unsigned char>(text[i]);
  return word;
}
uint64_t WordOf(const std::string &text) { return operator""_w(text.data(), text.size()); }

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

uint64_t Mask(unsigned bytes) { return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1; }

uint64_t Extend(uint64_t bits, const Type &type) {
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

double FloatOf(uint64_t bits, const Type &type) {
  if (type.kind == 'b') return Bits<float>(static_cast<uint32_t>(bits << 16));
  if (type.bytes == 2) return static_cast<double>(Bits<_Float16>(static_cast<uint16_t>(bits)));
  return type.bytes == 4 ? Bits<float>(static_cast<uint32_t>(bits)) : Bits<double>(bits);
}

// Rounds to the nearest. What comes from a double that was rounded to it before is rounded twice, which for sums and
// products of shorter types gives the same.
uint64_t BitsOf(double value, const Type &type) {
  if (type.bytes == 8) return Bits<uint64_t>(value);
  if (type.kind == 'f' && type.bytes == 2) return Bits<uint16_t>(static_cast<_Float16>(value));
  const auto bits = Bits<uint32_t>(static_cast<float>(value));
  if (type.bytes == 4) return bits;
  if (std::isnan(value)) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff;
}

std::vector<std::string> Split(const std::string &text, char at) {
  std::vector<std::string> parts;
  std::string part;
  int depth = 0;
  const auto add = [&] {
    const size_t first = part.find_first_not_of(" \t\n"), last = part.find_last_not_of(" \t\n");
    if (first != part.npos) parts.push_back(part.substr(first, last - first + 1));
    part.clear();
  };
  for (const char c : text) {
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (c == at && depth == 0)
      add();
    else
      part += c;
  }
  add();
  return parts;
}

[[noreturn]] void Unknown(const std::string &what) {
  throw std::runtime_error("The interpreter does not know `" + what + "`.");
}

} // namespace

struct Kernel {
  std::vector<size_t> parameters;
  std::vector<unsigned> registers; // how many bytes each has
  std::vector<Instruction> code;
  size_t shared = 0, local = 0;
};

namespace {

size_t RoundUp(size_t size, size_t to) { return (size + to - 1) / to * to; }

// Reads one kernel.
class Reader {
public:
  Reader(const std::map<std::string, Module::Variable> &variables, const std::map<std::string, size_t> &shared,
         size_t shared_size)
      : variables_(variables), shared_(shared) {
    kernel_->shared = shared_size;
  }

  std::unique_ptr<Kernel> read(const std::string &parameters, std::string body) {
    static const std::regex parameter(R"(\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s.*?([\w$]+)(?:\[(\d+)\])?\s*$)");
    for (const std::string &text : Split(parameters, ',')) {
      std::smatch found;
      if (!std::regex_search(text, found, parameter)) Unknown(text);
      parameters_[found[2]] = kernel_->parameters.size();
      kernel_->parameters.push_back(TypeOf(found[1])->bytes * (found[3].matched ? std::stoul(found[3]) : 1));
    }
    for (char &c : body)
      if (c == '{' || c == '}') c = c == '{' ? '\1' : '\2';
    // Braces are blocks or groups of operands. Registers of blocks have names of their own here.
    std::string flat;
    for (size_t i = 0; i < body.size(); ++i) {
      const bool is_group = body[i] == '\1' && i + 1 < body.size() &&
                            (body[i + 1] == '%' || body[i + 1] == '_' || std::isdigit(body[i + 1]) != 0);
      if (is_group) {
        const size_t end = body.find('\2', i);
        flat += "{" + body.substr(i + 1, end - i - 1) + "}";
        i = end;
      } else if (body[i] != '\1' && body[i] != '\2') {
        flat += body[i];
      }
    }
    static const std::regex before(
        R"(^(?:([$\w]+):(?!:)|\.(?:loc|pragma)\b[^\n]*)\s*)"); // labels, and lines of sources
    for (std::string statement : Split(flat, ';')) {
      for (std::smatch found; std::regex_search(statement, found, before);) {
        if (found[1].matched) labels_[found[1]] = kernel_->code.size();
        statement = found.suffix();
      }
      if (statement.empty()) continue;
      if (statement[0] == '.')
        declare(statement);
      else
        add(statement);
    }
    for (auto &[at, name] : branches_) {
      const auto it = labels_.find(name);
      if (it == labels_.end()) Unknown(name);
      kernel_->code[at].target = it->second;
    }
    return std::move(kernel_);
  }

private:
  void declare(const std::string &text) {
    static const std::regex registers(R"(^\.reg\s+\.(\w+)\s+([\s\S]*)$)"), several(R"(^([%\w$]+)<(\d+)>$)"),
        memory(R"(^\.(local|shared)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$)");
    std::smatch found;
    if (std::regex_match(text, found, registers)) {
      const unsigned bytes = TypeOf(found[1])->bytes;
      for (const std::string &name : Split(found[2], ',')) {
        std::smatch count;
        if (!std::regex_match(name, count, several)) {
          declare_register(name, bytes);
          continue;
        }
        for (unsigned long i = 0; i < std::stoul(count[2]); ++i)
          declare_register(count[1].str() + std::to_string(i), bytes);
      }
    } else if (std::regex_match(text, found, memory)) {
      const size_t each = TypeOf(found[3])->bytes;
      size_t &size = found[1] == "local" ? kernel_->local : kernel_->shared;
      size = RoundUp(size, found[2].matched ? std::stoul(found[2]) : each);
      (found[1] == "local" ? local_ : shared_)[found[4]] = size;
      size += each * (found[5].matched ? std::stoul(found[5]) : 1);
    } else {
      Unknown(text);
    }
  }

  void declare_register(const std::string &name, unsigned bytes) {
    registers_[name] = kernel_->registers.size();
    kernel_->registers.push_back(bytes);
  }

  void add(const std::string &text) {
    Instruction made;
    made.text = text;
    std::string rest = text;
    if (rest[0] == '@') {
      made.guard_is_false = rest[1] == '!';
      const size_t end = rest.find_first_of(" \t");
      made.guard = static_cast<int>(registers_.at(rest.substr(1 + made.guard_is_false, end - 1 - made.guard_is_false)));
      rest = rest.substr(rest.find_first_not_of(" \t", end));
    }
    const size_t end = rest.find_first_of(" \t\n");
    std::vector<std::string> words;
    for (std::string &word : Split(std::regex_replace(rest.substr(0, end), std::regex("::"), "."), '.'))
      words.push_back(std::move(word));
    made.name = WordOf(words[0]);
    std::vector<Type> types;
    for (size_t i = 1; i < words.size(); ++i) {
      made.says.push_back(WordOf(words[i]));
      if (const auto type = TypeOf(words[i])) types.push_back(*type);
    }
    if (!types.empty()) made.from = types.back(), made.type = made.name == "cvt"_w ? types.front() : types.back();
    for (const auto &[name, space] : {std::pair("global"_w, Space::kGlobal),
                                      {"shared"_w, Space::kShared},
                                      {"local"_w, Space::kLocal},
                                      {"param"_w, Space::kParameter}})
      if (made.has(name)) made.space = space;
    std::vector<std::string> given = end == rest.npos ? std::vector<std::string>{} : Split(rest.substr(end), ',');
    if (made.name == "bra"_w) {
      branches_.emplace_back(kernel_->code.size(), given.at(0));
      given.clear();
    }
    static const std::set<uint64_t> without_result{"st"_w, "red"_w, "bar"_w, "barrier"_w};
    const bool has_result = without_result.count(made.name) == 0;
    for (size_t i = 0; i < given.size(); ++i) {
      std::vector<Operand> &into = has_result && i == 0 ? made.to : made.operands;
      std::string operand = given[i];
      if (operand[0] == '{') {
        for (const std::string &each : Split(operand.substr(1, operand.size() - 2), ','))
          into.push_back(read_operand(each));
      } else if (const size_t bar = operand.find('|'); bar != operand.npos) {
        into.push_back(read_operand(operand.substr(0, bar)));
        into.push_back(read_operand(operand.substr(bar + 1)));
      } else {
        into.push_back(read_operand(operand));
      }
    }
    kernel_->code.push_back(std::move(made));
  }

  Operand read_operand(std::string text) {
    if (text[0] == '[') text = text.substr(1, text.size() - 2);
    text.erase(std::remove_if(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; }),
               text.end());
    const bool negated = text[0] == '!';
    if (negated) text = text.substr(1);
    int64_t offset = 0;
    if (const size_t plus = text.find('+'); plus != text.npos && plus > 0) {
      offset = std::stoll(text.substr(plus + 1));
      text = text.substr(0, plus);
    }
    const auto number = [&](uint64_t value) {
      return Operand{Operand::kNumber, 0, value + static_cast<uint64_t>(offset)};
    };
    if (text == "_") return {};
    if (const auto it = registers_.find(text); it != registers_.end()) {
      Operand operand{Operand::kRegister, it->second, static_cast<uint64_t>(offset)};
      operand.negated = negated;
      return operand;
    }
    if (text[0] == '%') {
      static const std::map<std::string, size_t> properties{
          {"%tid", kTid}, {"%ntid", kNtid}, {"%ctaid", kCtaid}, {"%nctaid", kNctaid}};
      if (text == "%laneid") return {Operand::kProperty, kLane};
      if (text == "%warpid") return {Operand::kProperty, kWarp};
      const size_t dot = text.find('.');
      const auto it = properties.find(text.substr(0, dot));
      if (it == properties.end() || dot == text.npos) Unknown(text);
      return {Operand::kProperty, it->second + static_cast<size_t>(text[dot + 1] - 'x')};
    }
    if (text[0] == '0' && text.size() > 2 && (text[1] == 'f' || text[1] == 'F'))
      return number(std::stoul(text.substr(2), nullptr, 16));
    if (text[0] == '0' && text.size() > 2 && (text[1] == 'd' || text[1] == 'D'))
      return number(std::stoull(text.substr(2), nullptr, 16));
    if (text[0] == '-') return number(static_cast<uint64_t>(std::stoll(text, nullptr, 0)));
    if (std::isdigit(text[0]) != 0) return number(std::stoull(text, nullptr, 0));
    if (const auto it = shared_.find(text); it != shared_.end()) return number(it->second);
    if (const auto it = local_.find(text); it != local_.end())
      return {Operand::kLocalAddress, 0, it->second + static_cast<uint64_t>(offset)};
    if (const auto it = parameters_.find(text); it != parameters_.end())
      return {Operand::kParameterAddress, it->second, static_cast<uint64_t>(offset)};
    if (const auto it = variables_.find(text); it != variables_.end()) return number(it->second.address);
    Unknown(text);
  }

  std::unique_ptr<Kernel> kernel_ = std::make_unique<Kernel>();
  const std::map<std::string, Module::Variable> &variables_;
  std::map<std::string, size_t> registers_, parameters_, local_, shared_, labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

constexpr unsigned kWarpSize = 32;

struct Thread {
  size_t at = 0; // its next instruction
  std::vector<uint64_t> registers;
  std::vector<std::byte> local;
  uint32_t properties[kZero + 1] = {};
  bool carry = false, is_over = false;
  // How often it has met the other threads of its block and of its warp.
  size_t met_block = 0, met_warp = 0;
};

class Block {
public:
  Block(const Kernel &kernel, const std::vector<std::vector<std::byte>> &parameters, Dim grid, Dim index, Dim size,
        size_t shared)
      : kernel_(kernel), parameters_(parameters), shared_(kernel.shared + shared),
        threads_(size_t{size.x} * size.y * size.z), slots_((threads_.size() + kWarpSize - 1) / kWarpSize) {
    for (uint32_t i = 0; i < threads_.size(); ++i) {
      const uint32_t properties[] = {i % size.x,
                                     i / size.x % size.y,
                                     i / size.x / size.y,
                                     size.x,
                                     size.y,
                                     size.z,
                                     index.x,
                                     index.y,
                                     index.z,
                                     grid.x,
                                     grid.y,
                                     grid.z,
                                     i % kWarpSize,
                                     i / kWarpSize,
                                     0};
      std::copy(std::begin(properties), std::end(properties), threads_[i].properties);
      threads_[i].registers.resize(kernel.registers.size());
      threads_[i].local.resize(kernel.local);
    }
  }

  void run() {
    for (bool any = true; any;) {
      any = false;
      for (Thread &thread : threads_)
        if (!thread.is_over) {
          any = true;
          while (step(thread)) {
          }
        }
    }
  }

private:
  uint64_t bits(const Thread &thread, const Operand &operand) const {
    switch (operand.kind) {
    case Operand::kRegister: {
      const uint64_t value = thread.registers[operand.index];
      return operand.negated ? !value : value + operand.number;
    }
    case Operand::kProperty:
      return thread.properties[operand.index];
    case Operand::kLocalAddress:
      return reinterpret_cast<Address>(thread.local.data()) + operand.number;
    case Operand::kParameterAddress:
      return reinterpret_cast<Address>(parameters_[operand.index].data()) + operand.number;
    default:
      return operand.number;
    }
  }
  uint64_t whole(const Thread &thread, const Operand &operand, const Type &type) const {
    return Extend(bits(thread, operand), type);
  }
  double real(const Thread &thread, const Operand &operand, const Type &type) const {
    return FloatOf(bits(thread, operand), type);
  }
  void write(Thread &thread, const Operand &to, uint64_t value) const {
    if (to.kind == Operand::kRegister)
      thread.registers[to.index] = kernel_.registers[to.index] == 1 ? value : value & Mask(kernel_.registers[to.index]);
  }

  std::byte *place(Thread &thread, const Instruction &now, const Operand &operand, size_t size) {
    Address address = bits(thread, operand);
    if (now.space == Space::kShared) {
      address &= 0xffffffff;
      if (address + size > shared_.size()) Fail("A kernel reaches beyond its shared memory.");
      return shared_.data() + address;
    }
    const auto is_in = [&](const std::vector<std::byte> &own) {
      const auto first = reinterpret_cast<Address>(own.data());
      return address >= first && address + size <= first + own.size();
    };
    const bool is_own = is_in(thread.local) || is_in(shared_) ||
                        (now.space == Space::kParameter && std::any_of(parameters_.begin(), parameters_.end(), is_in));
    return static_cast<std::byte *>(is_own ? reinterpret_cast<void *>(address) : memory().real(address, size));
  }

  // Returns whether all threads have come as often as this one has now. If not, the thread stands still.
  bool all_met(size_t Thread::*met, size_t times, size_t first, size_t last) const {
    return std::all_of(threads_.begin() + static_cast<long>(first),
                       threads_.begin() + static_cast<long>(std::min(last, threads_.size())),
                       [&](const Thread &other) { return other.is_over || other.*met >= times; });
  }

  // What threads of a warp give each other. A thread that has given goes on when all have.
  struct Slots {
    uint64_t values[2][kWarpSize] = {};
  };
  bool gives(Thread &thread, uint64_t value, uint32_t mask) {
    Slots &slots = slots_[thread.properties[kWarp]];
    if (!waits_.count(&thread)) {
      slots.values[thread.met_warp % 2][thread.properties[kLane]] = value;
      ++thread.met_warp;
      waits_.insert(&thread);
    }
    const size_t first = size_t{thread.properties[kWarp]} * kWarpSize;
    for (size_t lane = 0; lane < kWarpSize && first + lane < threads_.size(); ++lane) {
      const Thread &other = threads_[first + lane];
      if ((mask >> lane & 1) != 0 && !other.is_over && other.met_warp < thread.met_warp) return false;
    }
    waits_.erase(&thread);
    return true;
  }
  uint64_t given(const Thread &thread, uint32_t lane) const {
    return slots_[thread.properties[kWarp]].values[(thread.met_warp - 1) % 2][lane % kWarpSize];
  }

  bool step(Thread &thread);
  bool compare(const Thread &thread, const Instruction &now) const;
  uint64_t convert(const Thread &thread, const Instruction &now) const;
  double compute_real(const Thread &thread, const Instruction &now, const Type &type, unsigned shift) const;
  std::optional<uint64_t> compute(Thread &thread, const Instruction &now) const;
  bool exchange(Thread &thread, const Instruction &now);

  const Kernel &kernel_;
  const std::vector<std::vector<std::byte>> &parameters_;
  std::vector<std::byte> shared_;
  std::vector<Thread> threads_;
  std::vector<Slots> slots_;
  std::set<const Thread *> waits_; // for the others of their warps
};

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

// What threads of a warp do together. Returns false if the others have not come yet.
bool Block::exchange(Thread &thread, const Instruction &now) {
  const auto plain = [&](size_t i) { return static_cast<uint32_t>(bits(thread, now.operands.at(i))); };
  const uint32_t lane = thread.properties[kLane];
  const auto result = [&](size_t i, uint64_t value) {
    if (i < now.to.size()) write(thread, now.to[i], value);
  };
  if (now.name == "shfl"_w) {
    if (!gives(thread, plain(0), plain(3))) return false;
    const uint32_t by = plain(1) & 31, clamp = plain(2) & 31, segment = plain(2) >> 8 & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    uint32_t from = now.has("up"_w)     ? lane - by
                    : now.has("down"_w) ? lane + by
                    : now.has("bfly"_w) ? lane ^ by
                                        : first | (by & ~segment);
    const bool is_there = now.has("up"_w) ? static_cast<int32_t>(from) >= static_cast<int32_t>(last) : from <= last;
    if (!is_there) from = lane;
    result(0, given(thread, from));
    result(1, is_there);
    return true;
  }
  const bool is_vote = now.name == "vote"_w;
  const uint32_t mask = now.operands.size() > 1 ? plain(1) : plain(0);
  if (!gives(thread, is_vote ? plain(0) & 1 : plain(0), mask)) return false;
  uint64_t all = 0;
  bool is_first = true;
  for (uint32_t other = 0; other < kWarpSize; ++other) {
    if ((mask >> other & 1) == 0) continue;
    const uint64_t value = given(thread, other);
    const bool less = now.type.kind == 's' ? static_cast<int32_t>(value) < static_cast<int32_t>(all) : value < all;
    if (is_vote)
      all |= value << other;
    else if (is_first)
      all = value;
    else
      all = now.has("add"_w)   ? all + value
            : now.has("and"_w) ? all & value
            : now.has("or"_w)  ? all | value
            : now.has("xor"_w) ? all ^ value
                               : (less == now.has("min"_w) ? value : all);
    is_first = false;
  }
  if (is_vote && !now.has("ballot"_w)) all = now.has("any"_w) ? all != 0 : all == mask;
  result(0, all);
  return true;
}

// Runs one instruction. Returns false if the thread has to wait for others, or is over.
bool Block::step(Thread &thread) {
  if (thread.at >= kernel_.code.size()) {
    thread.is_over = true;
    return false;
  }
  const Instruction &now = kernel_.code[thread.at];
  if (now.guard >= 0 && (thread.registers[static_cast<size_t>(now.guard)] != 0) == now.guard_is_false) {
    ++thread.at;
    return true;
  }
  const uint64_t name = now.name;
  if (name == "bra"_w) {
    thread.at = now.target;
    return true;
  }
  if (name == "ret"_w || name == "exit"_w) {
    thread.is_over = true;
    return false;
  }
  const size_t size = now.type.bytes;
  if (name == "ld"_w || name == "ldu"_w) {
    const std::byte *from = place(thread, now, now.operands[0], size * now.to.size());
    for (const Operand &to : now.to) {
      uint64_t value = 0;
      std::memcpy(&value, from, size);
      write(thread, to, Extend(value, now.type));
      from += size;
    }
  } else if (name == "st"_w) {
    std::byte *to = place(thread, now, now.operands[0], size * (now.operands.size() - 1));
    for (size_t i = 1; i < now.operands.size(); ++i, to += size) {
      const uint64_t value = bits(thread, now.operands[i]);
      std::memcpy(to, &value, size);
    }
  } else if (name == "atom"_w || name == "red"_w) {
    std::byte *const at = place(thread, now, now.operands[0], size);
    uint64_t old = 0;
    std::memcpy(&old, at, size);
    old = Extend(old, now.type);
    const uint64_t given = whole(thread, now.operands[1], now.type);
    const bool less = now.type.kind == 's' ? static_cast<int64_t>(given) < static_cast<int64_t>(old) : given < old;
    uint64_t made = given; // "exch"
    if (now.has("cas"_w))
      made = old == given ? whole(thread, now.operands[2], now.type) : old;
    else if (now.has("add"_w))
      made = now.type.is_float() ? BitsOf(FloatOf(old, now.type) + FloatOf(given, now.type), now.type) : old + given;
    else if (now.has("min"_w) || now.has("max"_w))
      made = less == now.has("min"_w) ? given : old;
    else if (now.has("and"_w) || now.has("or"_w) || now.has("xor"_w))
      made = now.has("and"_w) ? old & given : now.has("or"_w) ? old | given : old ^ given;
    else if (!now.has("exch"_w))
      Unknown(now.text);
    std::memcpy(at, &made, size);
    if (!now.to.empty()) write(thread, now.to[0], old);
  } else if (name == "bar"_w || name == "barrier"_w) {
    if (!waits_.count(&thread)) {
      ++thread.met_block;
      waits_.insert(&thread);
    }
    if (!all_met(&Thread::met_block, thread.met_block, 0, threads_.size())) return false;
    waits_.erase(&thread);
  } else if (name == "shfl"_w || name == "vote"_w || name == "redux"_w) {
    if (!exchange(thread, now)) return false;
  } else if (name == "mov"_w && now.to.size() > 1) {
    const unsigned each = now.type.bytes / static_cast<unsigned>(now.to.size());
    for (size_t i = 0; i < now.to.size(); ++i)
      write(thread, now.to[i], bits(thread, now.operands[0]) >> (8 * each * i) & Mask(each));
  } else if (name == "activemask"_w) {
    write(thread, now.to[0], 0xffffffff);
  } else if (name != "membar"_w && name != "fence"_w && name != "nanosleep"_w && name != "griddepcontrol"_w) {
    const std::optional<uint64_t> value = compute(thread, now);
    if (!value) Unknown(now.text);
    write(thread, now.to[0], *value);
    if (now.to.size() > 1) write(thread, now.to[1], !*value); // of `setp`
  }
  ++thread.at;
  return true;
}

} // namespace

Module::Module(const std::string &text_with_comments, int device) {
  std::string text;
  for (size_t i = 0; i < text_with_comments.size(); ++i) {
    if (text_with_comments.compare(i, 2, "//") == 0) i = text_with_comments.find('\n', i);
    if (text_with_comments.compare(i, 2, "/*") == 0) i = text_with_comments.find("*/", i) + 2;
    if (i >= text_with_comments.size()) break;
    text += text_with_comments[i];
  }
  static const std::regex variable(
      R"(\.(global|const|shared)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?\s*[=;])");
  static const std::regex entry(R"(\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{]*\{)");
  std::map<std::string, size_t> shared;
  size_t shared_size = 0;
  const size_t kernels = std::min(text.find(".entry"), text.size());
  for (std::sregex_iterator it(text.begin(), text.begin() + static_cast<long>(kernels), variable), end; it != end;
       ++it) {
    const std::smatch &found = *it;
    const size_t each = TypeOf(found[3])->bytes;
    const size_t size = each * (!found[5].matched ? 1 : found[5].length() == 0 ? 0 : std::stoul(found[5]));
    if (found[1] == "shared") {
      shared_size = RoundUp(shared_size, found[2].matched ? std::stoul(found[2]) : each);
      shared[found[4]] = shared_size;
      shared_size += size;
      continue;
    }
    const Variable made{size, memory().reserve(std::max<size_t>(size, 1))};
    if (made.address == 0 || !memory().map(made.address, std::max<size_t>(size, 1), device))
      throw std::runtime_error("The device has no more memory for " + found[4].str() + ".");
    auto *place = static_cast<std::byte *>(memory().real(made.address, size));
    std::fill_n(place, size, std::byte{0});
    const auto first = static_cast<size_t>(found.position() + found.length()) - 1;
    std::string values = text[first] == '=' ? text.substr(first + 1, text.find(';', first) - first - 1) : "";
    values.erase(std::remove_if(values.begin(), values.end(), [](char c) { return c == '{' || c == '}'; }),
                 values.end());
    for (const std::string &value : Split(values, ',')) {
      const uint64_t bits = value[0] == '-' ? static_cast<uint64_t>(std::stoll(value)) : std::stoull(value, nullptr, 0);
      std::memcpy(place, &bits, each);
      place += each;
    }
    variables_.emplace(found[4], made);
  }
  for (std::sregex_iterator it(text.begin(), text.end(), entry), end; it != end; ++it) {
    size_t at = static_cast<size_t>(it->position() + it->length());
    const size_t first = at;
    for (int depth = 1; depth > 0; ++at) depth += (text[at] == '{') - (text[at] == '}');
    kernels_[(*it)[1]] = Reader(variables_, shared, shared_size).read((*it)[2], text.substr(first, at - 1 - first));
  }
}

Module::~Module() = default;

const Kernel *Module::find(const std::string &name) const {
  const auto it = kernels_.find(name);
  return it == kernels_.end() ? nullptr : it->second.get();
}

const Module::Variable *Module::variable(const std::string &name) const {
  const auto it = variables_.find(name);
  return it == variables_.end() ? nullptr : &it->second;
}

const std::vector<size_t> &ParametersOf(const Kernel &kernel) { return kernel.parameters; }

void Run(const Kernel &kernel, Dim grid, Dim block, const std::vector<std::vector<std::byte>> &parameters,
         size_t shared) {
  for (uint32_t z = 0; z < grid.z; ++z)
    for (uint32_t y = 0; y < grid.y; ++y)
      for (uint32_t x = 0; x < grid.x; ++x) Block(kernel, parameters, grid, {x, y, z}, block, shared).run();
}

} // namespace simulated
