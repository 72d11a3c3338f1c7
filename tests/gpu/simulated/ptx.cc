#include "ptx.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>
#include <utility>

#include "kernel.h"

namespace simulated {
namespace {

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
      const size_t next = body.find_first_not_of(" \t", i + 1);
      const bool is_group = body[i] == '\1' && next != body.npos &&
                            (body[next] == '%' || body[next] == '_' || std::isdigit(body[next]) != 0);
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
        memory(R"(^\.(local|shared|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$)");
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
      const bool is_local = found[1] != "shared"; // what a function is called with too
      size_t &size = is_local ? kernel_->local : kernel_->shared;
      size = RoundUp(size, found[2].matched ? std::stoul(found[2]) : each);
      (is_local ? local_ : shared_)[found[4]] = size;
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
    if (made.name == "call"_w) {
      if (given.at(0) != "cudaGraphSetConditional") Unknown(text);
      given.erase(given.begin());
      for (std::string &operand : given) operand = std::regex_replace(operand, std::regex("[()]"), "");
    }
    static const std::set<uint64_t> without_result{"st"_w, "red"_w, "bar"_w, "barrier"_w, "call"_w};
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

} // namespace simulated
