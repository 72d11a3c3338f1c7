// For authors of handlers that are called with `effects.custom_call`: printing lines from C++, and errors in three
// sentences.
//
//   #include "token_effects/custom_call.h"
//
//   static ffi::Error Scale(token_effects::Call call, float factor, ffi::Buffer<ffi::F32> x,
//                           ffi::ResultBuffer<ffi::F32> y) {
//     ...
//     call.Print("scaled by ", factor);
//     return ffi::Error::Success();
//   }
//   XLA_FFI_DEFINE_HANDLER_SYMBOL(scale, Scale,
//                                 ffi::Ffi::Bind()
//                                     .Ctx<token_effects::Call>()
//                                     .Attr<float>("factor")
//                                     .Arg<ffi::Buffer<ffi::F32>>()
//                                     .Ret<ffi::Buffer<ffi::F32>>());
//
// There is nothing to link: the library passes its functions with the call. On NVIDIA's GPUs a handler's records are
// shown when the device has reached the call, after the work that the handler has launched. On other GPUs they are
// unordered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <locale>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace token_effects {

// The library's functions, a first extension of XLA's API struct.
struct Functions {
  static constexpr uint32_t kType = 0x70EFFEC8;

  size_t struct_size;
  uint32_t type; // kType
  const void *next;

  // Publishes a line at the place of the call that runs in this thread. Returns null or an error text.
  const char *(*publish)(const char *text, size_t size);
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
    const std::string text = line.str();
    if (const char *wrong = functions_->publish(text.data(), text.size())) throw std::runtime_error(wrong);
  }

private:
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
