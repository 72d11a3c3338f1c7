// For authors of handlers that are called with `effects.custom_call`: publishing records from C++, errors in three
// sentences, attributes.
//
//   #include "token_effects/custom_call.h"
//
//   static ffi::Error Scale(token_effects::Call call, ffi::Dictionary attrs, ffi::Buffer<ffi::F32> x,
//                           ffi::ResultBuffer<ffi::F32> y) {
//     auto factor = token_effects::Attribute<float>(attrs, "factor");
//     if (!factor.has_value()) return factor.error();
//     ...
//     call.Print("scaled by ", *factor);
//     return ffi::Error::Success();
//   }
//   XLA_FFI_DEFINE_HANDLER_SYMBOL(scale, Scale,
//                                 ffi::Ffi::Bind()
//                                     .Ctx<token_effects::Call>()
//                                     .Attrs()
//                                     .Arg<ffi::Buffer<ffi::F32>>()
//                                     .Ret<ffi::Buffer<ffi::F32>>());
//
// There is nothing to link: the library passes its functions with the call. On NVIDIA's GPUs a handler's records are
// shown when the device has reached the call, after the work that the handler has launched. On other GPUs they are
// unordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace token_effects {

// The library's functions, a first extension of XLA's API struct.
struct Functions {
  static constexpr uint32_t kType = 0x70EFFEC7;

  size_t struct_size;
  uint32_t type; // kType
  const void *next;

  // Publishes a record at the place of the call that runs in this thread. Returns null or an error text.
  const char *(*publish)(int32_t level, const char *text, size_t size);
};

// The level of a printed line; events have Python's levels.
constexpr int32_t kLine = -1;
enum Level : int32_t { kDebug = 10, kInfo = 20, kWarning = 30, kError = 40, kCritical = 50 };

// A field of an event: a name, and a number, a text or a boolean.
class Field {
public:
  template <typename T>
  Field(std::string_view name, const T &value) {
    Quote(name);
    json_ += ':';
    if constexpr (std::is_same_v<T, bool>) {
      json_ += value ? "true" : "false";
    } else if constexpr (std::is_arithmetic_v<T>) {
      Number(value);
    } else {
      Quote(std::string_view(value));
    }
  }
  const std::string &json() const { return json_; }

  static std::string Quoted(std::string_view text) {
    std::string json = "\"";
    for (const char c : text) {
      constexpr char kHex[] = "0123456789abcdef";
      if (c == '"' || c == '\\') {
        json += '\\';
        json += c;
      } else if (static_cast<unsigned char>(c) < 0x20) {
        json += "\\u00";
        json += kHex[c >> 4];
        json += kHex[c & 15];
      } else {
        json += c;
      }
    }
    return json + '"';
  }

private:
  void Quote(std::string_view text) { json_ += Quoted(text); }
  template <typename T>
  void Number(T value) {
    if constexpr (std::is_integral_v<T>) {
      json_ += std::to_string(value);
    } else if (value != value) {
      json_ += "NaN";
    } else if (value - value != 0) {
      json_ += value > 0 ? "Infinity" : "-Infinity";
    } else {
      std::ostringstream text;
      text.imbue(std::locale::classic());
      text.precision(std::numeric_limits<T>::max_digits10);
      text << value;
      json_ += text.str();
      // Without one of these, Python would read the number as an integer.
      if (text.str().find_first_of(".e") == std::string::npos) json_ += ".0";
    }
  }
  std::string json_;
};

// The call that a handler serves, valid in the handler's thread until the handler returns. Its records have the call's
// place in the program, before all later effects.
class Call {
public:
  explicit Call(const Functions *functions) : functions_(functions) {}

  // Prints a line that consists of these parts.
  template <typename... Parts>
  void Print(const Parts &...parts) const {
    std::ostringstream line;
    line.imbue(std::locale::classic());
    static_cast<void>((line << ... << parts));
    Publish(kLine, line.str());
  }

  // Logs an event, as `effects.log` does.
  void Log(Level level, std::string_view event, std::initializer_list<Field> fields = {}) const {
    std::string json = "{\"event\":" + Field::Quoted(event) + ",\"fields\":{";
    bool first = true;
    for (const Field &field : fields) {
      if (!std::exchange(first, false)) json += ',';
      json += field.json();
    }
    Publish(level, json + "}}");
  }

private:
  void Publish(int32_t level, const std::string &text) const {
    if (const char *wrong = functions_->publish(level, text.data(), text.size())) throw std::runtime_error(wrong);
  }
  const Functions *functions_;
};

// An error of three sentences: the event, the rule that it broke, and the remedy.
inline xla::ffi::Error Error(xla::ffi::ErrorCode code, std::string_view happened, std::string_view rule,
                             std::string_view remedy) {
  std::string text;
  for (const std::string_view sentence : {happened, rule, remedy}) {
    if (!text.empty()) text += ' ';
    text += sentence;
    if (!text.empty() && text.back() != '.') text += '.';
  }
  return xla::ffi::Error(code, std::move(text));
}

// An attribute of the call, or an error that shows the call's attributes.
template <typename T>
xla::ffi::ErrorOr<T> Attribute(const xla::ffi::Dictionary &attributes, std::string_view name) {
  if (auto value = attributes.get<T>(name); value.has_value()) return *value;
  std::string known;
  for (auto it = attributes.begin(); it != attributes.end(); ++it) {
    if (!known.empty()) known += ", ";
    known += '`' + std::string(*it) + '`';
  }
  const std::string named = "`" + std::string(name) + "`";
  const std::string happened =
      attributes.contains(name)
          ? "The attribute " + named + " has another type than its handler wants"
          : "The attribute " + named + " is missing; given are " + (known.empty() ? "none" : known);
  return xla::ffi::Unexpected(
      Error(xla::ffi::ErrorCode::kInvalidArgument, happened, "A handler reads its attributes by name and type",
            "Give " + named + " to `fx.custom_call`, as a NumPy number where its width matters"));
}

// A handler that calls a function of XLA's older signature. `out` is the result, or the array of results unless there
// is one:
//
//   XLA_FFI_DEFINE_HANDLER_SYMBOL(scale, token_effects::OfC<OldScale>,
//                                 ffi::Ffi::Bind().RemainingArgs().RemainingRets());
template <void (*function)(void *out, const void **in)>
xla::ffi::Error OfC(xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets) {
  std::vector<const void *> in(args.size());
  std::vector<void *> out(rets.size());
  for (size_t i = 0; i < in.size(); ++i) in[i] = args.get<xla::ffi::AnyBuffer>(i)->untyped_data();
  for (size_t i = 0; i < out.size(); ++i) out[i] = (*rets.get<xla::ffi::AnyBuffer>(i))->untyped_data();
  function(out.size() == 1 ? out[0] : out.data(), in.data());
  return xla::ffi::Error::Success();
}

} // namespace token_effects

// Makes `.Ctx<token_effects::Call>()` a part of bindings.
template <>
struct xla::ffi::CtxDecoding<token_effects::Call> {
  using Type = token_effects::Call;

  static std::optional<Type> Decode(const XLA_FFI_Api *api, XLA_FFI_ExecutionContext *, DiagnosticEngine &diagnostic) {
    const void *extension = api->extension_start;
    while (extension != nullptr) {
      const auto *functions = static_cast<const token_effects::Functions *>(extension);
      if (functions->type == token_effects::Functions::kType) return Type(functions);
      extension = functions->next;
    }
    diagnostic.Emit("This handler takes a `token_effects::Call`, which only `effects.custom_call` gives. Register it "
                    "with `effects.register_custom_call`, and call it with `effects.custom_call`.");
    return std::nullopt;
  }
};
