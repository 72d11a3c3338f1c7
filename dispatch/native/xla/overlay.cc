#include "overlay.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "custom_call.h"
#include "targets.h"
#include "token_effects/custom_call.h"

namespace effects {
namespace {

struct Overlay {
  const XLA_FFI_Api *original;
  token_effects::Functions functions;
  XLA_FFI_Api *api; // a copy as large as the original, which may be larger than we know
  std::unique_ptr<char[]> memory;

  std::mutex mutex;
  struct Details {
    XLA_FFI_Error_Code code;
    std::string message;
  };
  std::unordered_map<XLA_FFI_Error *, Details> errors; // that have not been handed to XLA
  struct Whose {
    std::string target, where;
    std::shared_ptr<StartedCall> started; // the future is none of XLA's
    std::shared_ptr<BufferViews> views;   // what the handler still looks at
  };
  std::unordered_map<XLA_FFI_Future *, Whose> futures; // that are not there yet

  explicit Overlay(const XLA_FFI_Api *original);
};
Overlay *overlay = nullptr; // written once, before the first call

constexpr char kNoCall[] =
    "A record was published by a handler that has returned, or by a thread other than its own. It would have no place "
    "in the program's order. Publish before the handler returns, in the thread that runs it.";

// What handlers call through `token_effects::Call`.
const char *Publish(int32_t level, const char *text, size_t size) {
  CurrentCall *const current = current_call();
  if (current == nullptr) return kNoCall;
  const LoadedCall &call = *current->call;
  if (call.counts_on_device) {
    current->messages.push_back({level, std::string(text, size)});
    return nullptr;
  }
  const int32_t device = call.first_device + DeviceOf(overlay->original, current->context);
  if (call.counts)
    call.messages->publish(current->token, device, level, {text, size});
  else
    call.messages->publish_untracked(device, level, {text, size});
  return nullptr;
}

XLA_FFI_Error *NewError(XLA_FFI_Error_Code code, const std::string &message) {
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(), code};
  return overlay->original->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error *CreateError(XLA_FFI_Error_Create_Args *args) {
  XLA_FFI_Error *error = overlay->original->XLA_FFI_Error_Create(args);
  std::lock_guard lock(overlay->mutex);
  overlay->errors[error] = {args->errc, args->message == nullptr ? "" : args->message};
  return error;
}

void DestroyError(XLA_FFI_Error_Destroy_Args *args) {
  {
    std::lock_guard lock(overlay->mutex);
    overlay->errors.erase(args->error);
  }
  overlay->original->XLA_FFI_Error_Destroy(args);
}

// The text with a question mark for what is not UTF-8: Python reads XLA's errors strictly.
std::string Readable(const std::string &text) {
  std::string readable;
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t more = byte < 0x80 ? 0 : byte >> 5 == 6 ? 1 : byte >> 4 == 14 ? 2 : byte >> 3 == 30 ? 3 : 4;
    uint32_t code = more == 0 ? byte : byte & (0x3f >> more);
    size_t good = 1;
    while (good <= more && more < 4 && at + good < text.size() &&
           (static_cast<unsigned char>(text[at + good]) & 0xc0) == 0x80)
      code = code << 6 | (static_cast<unsigned char>(text[at + good++]) & 0x3f);
    constexpr uint32_t kLeast[] = {1, 0x80, 0x800, 0x10000}; // of so many bytes
    if (more < 4 && good == more + 1 && code >= kLeast[more] && code < 0x110000 && (code < 0xd800 || code > 0xdfff)) {
      readable.append(text, at, good);
      at += good;
    } else {
      readable += '?';
      ++at;
    }
  }
  return readable;
}

} // namespace

int32_t DeviceOf(const XLA_FFI_Api *functions, XLA_FFI_ExecutionContext *context) {
  XLA_FFI_DeviceOrdinal_Get_Args args{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, context, 0};
  if (XLA_FFI_Error *error = functions->XLA_FFI_DeviceOrdinal_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    functions->XLA_FFI_Error_Destroy(&destroy);
  }
  return args.device_ordinal;
}

std::string DescribeFailure(const std::string &target, const std::string &where, int code, const std::string &message) {
  const uint64_t number = custom_call_failures().add({0, target, where, message, code});
  return "Custom call `" + target + "` at " + where + " failed: " + Readable(message) + " (custom call failure " +
         std::to_string(number) + ")";
}

XLA_FFI_Error *Fail(const std::string &target, const std::string &where, XLA_FFI_Error_Code code,
                    const std::string &message) {
  return NewError(code, DescribeFailure(target, where, static_cast<int>(code), message));
}

namespace {

// What an error of the handler's says. It is freed.
Overlay::Details DetailsOf(XLA_FFI_Error *error) {
  Overlay::Details details{XLA_FFI_Error_Code_UNKNOWN, "The handler returned an error that was made elsewhere."};
  {
    std::lock_guard lock(overlay->mutex);
    if (auto it = overlay->errors.find(error); it != overlay->errors.end()) {
      details = std::move(it->second);
      overlay->errors.erase(it);
    }
  }
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  overlay->original->XLA_FFI_Error_Destroy(&args);
  return details;
}

} // namespace

XLA_FFI_Error *FailWith(const std::string &target, const std::string &where, XLA_FFI_Error *error) {
  const Overlay::Details details = DetailsOf(error);
  return Fail(target, where, details.code, details.message);
}

namespace {

XLA_FFI_Error *CreateFuture(XLA_FFI_Future_Create_Args *args) {
  CurrentCall *const current = current_call();
  if (current != nullptr && current->started != nullptr) {
    // XLA does not wait for it. All that is asked of it is an address that no other has.
    args->future = reinterpret_cast<XLA_FFI_Future *>(new char);
  } else if (XLA_FFI_Error *error = overlay->original->XLA_FFI_Future_Create(args)) {
    return error;
  }
  if (current != nullptr) {
    current->answers_later = true;
    std::lock_guard lock(overlay->mutex);
    overlay->futures[args->future] = {current->call->target, current->call->where, current->started, current->views};
  }
  return nullptr;
}

// The program that waits for a future may go on in the call that completes it, so no lock is held there.
std::optional<Overlay::Whose> Forget(XLA_FFI_Future *future) {
  std::lock_guard lock(overlay->mutex);
  const auto it = overlay->futures.find(future);
  if (it == overlay->futures.end()) return std::nullopt;
  std::optional<Overlay::Whose> whose = std::move(it->second);
  overlay->futures.erase(it);
  if (whose->started != nullptr) delete reinterpret_cast<char *>(future);
  return whose;
}

XLA_FFI_Error *CompleteFuture(XLA_FFI_Future_SetAvailable_Args *args) {
  if (const auto whose = Forget(args->future); whose && whose->started != nullptr) {
    whose->started->answer({});
    return nullptr;
  }
  return overlay->original->XLA_FFI_Future_SetAvailable(args);
}

XLA_FFI_Error *FailFuture(XLA_FFI_Future_SetError_Args *args) {
  XLA_FFI_Future_SetError_Args ours = *args;
  if (const auto whose = Forget(args->future)) {
    if (whose->started != nullptr) {
      const Overlay::Details details = DetailsOf(args->error);
      whose->started->answer(
          DescribeFailure(whose->target, whose->where, static_cast<int>(details.code), details.message));
      return nullptr;
    }
    ours.error = FailWith(whose->target, whose->where, args->error);
  }
  return overlay->original->XLA_FFI_Future_SetError(&ours);
}

Overlay::Overlay(const XLA_FFI_Api *original)
    : original(original),
      functions{sizeof(functions), token_effects::Functions::kType, original->extension_start, &Publish},
      memory(new char[original->struct_size]) {
  std::memcpy(memory.get(), original, original->struct_size);
  api = reinterpret_cast<XLA_FFI_Api *>(memory.get());
  api->extension_start = reinterpret_cast<decltype(api->extension_start)>(&functions);
  api->XLA_FFI_Error_Create = &CreateError;
  api->XLA_FFI_Error_Destroy = &DestroyError;
  api->XLA_FFI_Future_Create = &CreateFuture;
  api->XLA_FFI_Future_SetAvailable = &CompleteFuture;
  api->XLA_FFI_Future_SetError = &FailFuture;
}

} // namespace

const XLA_FFI_Api *OverlayOf(const XLA_FFI_Api *original) {
  static Overlay *const made = overlay = new Overlay(original);
  return made->api;
}

} // namespace effects
