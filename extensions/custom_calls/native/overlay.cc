#include "overlay.h"

#include <algorithm>
#include <atomic>
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

// One per XLA of the process: jaxlib has one, and each plugin another. An XLA must not get the errors or futures of
// another.
struct Overlay {
  const XLA_FFI_Api *const original;
  token_effects::Functions functions;
  XLA_FFI_Api *api; // a copy as large as the original, whose type may be a newer, larger one
  std::unique_ptr<char[]> memory;

  std::mutex mutex;
  struct Details {
    XLA_FFI_Error_Code code;
    std::string message;
  };
  std::unordered_map<XLA_FFI_Error *, Details> errors; // not yet returned to XLA
  struct Whose {
    std::string target, where;
  };
  std::unordered_map<XLA_FFI_Future *, Whose> futures; // not yet fulfilled

  explicit Overlay(const XLA_FFI_Api *original);

  // The functions of XLA that are replaced by ours.
  XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *args);
  void destroy_error(XLA_FFI_Error_Destroy_Args *args);
  XLA_FFI_Error *create_future(XLA_FFI_Future_Create_Args *args);
  XLA_FFI_Error *complete_future(XLA_FFI_Future_SetAvailable_Args *args);
  XLA_FFI_Error *fail_future(XLA_FFI_Future_SetError_Args *args);

  // The text of a handler's error. Frees the error.
  Details details_of(XLA_FFI_Error *error);

private:
  std::optional<Whose> forget(XLA_FFI_Future *future);
};

constexpr size_t kMostXlas = 4;
std::atomic<Overlay *> overlays[kMostXlas]; // each is written once, in order
std::mutex overlays_mutex;

// The overlay of a table of XLA's; null if there is none.
Overlay *Find(const XLA_FFI_Api *original) {
  for (const auto &overlay : overlays) {
    Overlay *const one = overlay.load(std::memory_order_acquire);
    if (one == nullptr || one->original == original) return one;
  }
  return nullptr;
}

// A function of XLA's interface is not told by which table it is called, so each table has functions of its own.
template <size_t at>
struct Functions {
  static Overlay &own() { return *overlays[at].load(std::memory_order_relaxed); }
  static XLA_FFI_Error *CreateError(XLA_FFI_Error_Create_Args *args) { return own().create_error(args); }
  static void DestroyError(XLA_FFI_Error_Destroy_Args *args) { own().destroy_error(args); }
  static XLA_FFI_Error *CreateFuture(XLA_FFI_Future_Create_Args *args) { return own().create_future(args); }
  static XLA_FFI_Error *CompleteFuture(XLA_FFI_Future_SetAvailable_Args *args) { return own().complete_future(args); }
  static XLA_FFI_Error *FailFuture(XLA_FFI_Future_SetError_Args *args) { return own().fail_future(args); }

  static void put_into(XLA_FFI_Api &api) {
    api.XLA_FFI_Error_Create = &CreateError;
    api.XLA_FFI_Error_Destroy = &DestroyError;
    api.XLA_FFI_Future_Create = &CreateFuture;
    api.XLA_FFI_Future_SetAvailable = &CompleteFuture;
    api.XLA_FFI_Future_SetError = &FailFuture;
  }
};
constexpr void (*kPutInto[kMostXlas])(XLA_FFI_Api &) = {&Functions<0>::put_into, &Functions<1>::put_into,
                                                        &Functions<2>::put_into, &Functions<3>::put_into};

constexpr char kNoCall[] =
    "A record was published by a handler that has returned, or by a thread other than its own. It would have no place "
    "in the program's order. Publish before the handler returns, in the thread that runs it.";

// The functions behind `token_effects::Call`.
const char *Publish(const char *text, size_t size) {
  CurrentCall *const current = current_call();
  if (current == nullptr) return kNoCall;
  const LoadedCall &call = *current->call;
  const int32_t device = call.first_device + DeviceOf(current->xla, current->context);
  if (call.counts)
    call.messages->publish(current->token, device, {text, size});
  else
    call.messages->publish_plain(device, {text, size});
  return nullptr;
}

XLA_FFI_Error *Overlay::create_error(XLA_FFI_Error_Create_Args *args) {
  XLA_FFI_Error *error = original->XLA_FFI_Error_Create(args);
  std::lock_guard lock(mutex);
  errors[error] = {args->errc, args->message == nullptr ? "" : args->message};
  return error;
}

void Overlay::destroy_error(XLA_FFI_Error_Destroy_Args *args) {
  {
    std::lock_guard lock(mutex);
    errors.erase(args->error);
  }
  original->XLA_FFI_Error_Destroy(args);
}

// The text with a question mark for each byte that is not ASCII: Python reads XLA's errors strictly, as UTF-8.
std::string Readable(std::string text) {
  const auto is_other = [](char c) { return static_cast<unsigned char>(c) >= 0x80; };
  std::replace_if(text.begin(), text.end(), is_other, '?');
  return text;
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

XLA_FFI_Error *Fail(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                    XLA_FFI_Error_Code code, const std::string &message) {
  const std::string text = DescribeFailure(target, where, static_cast<int>(code), message);
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, text.c_str(), code};
  return original->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error *FailWith(const XLA_FFI_Api *original, const std::string &target, const std::string &where,
                        XLA_FFI_Error *error) {
  Overlay *const overlay = Find(original);
  if (overlay == nullptr) return error;
  const Overlay::Details details = overlay->details_of(error);
  return Fail(original, target, where, details.code, details.message);
}

namespace {

Overlay::Details Overlay::details_of(XLA_FFI_Error *error) {
  Details details{XLA_FFI_Error_Code_UNKNOWN, "The handler returned an error that was made elsewhere."};
  {
    std::lock_guard lock(mutex);
    if (auto it = errors.find(error); it != errors.end()) {
      details = std::move(it->second);
      errors.erase(it);
    }
  }
  XLA_FFI_Error_Destroy_Args args{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  original->XLA_FFI_Error_Destroy(&args);
  return details;
}

XLA_FFI_Error *Overlay::create_future(XLA_FFI_Future_Create_Args *args) {
  if (XLA_FFI_Error *error = original->XLA_FFI_Future_Create(args)) return error;
  if (CurrentCall *const current = current_call()) {
    std::lock_guard lock(mutex);
    futures[args->future] = {current->call->target, current->call->where};
  }
  return nullptr;
}

// The waiting program may continue inside the call that completes a future, so no lock is held there.
std::optional<Overlay::Whose> Overlay::forget(XLA_FFI_Future *future) {
  std::lock_guard lock(mutex);
  const auto it = futures.find(future);
  if (it == futures.end()) return std::nullopt;
  std::optional<Whose> whose = std::move(it->second);
  futures.erase(it);
  return whose;
}

XLA_FFI_Error *Overlay::complete_future(XLA_FFI_Future_SetAvailable_Args *args) {
  forget(args->future);
  return original->XLA_FFI_Future_SetAvailable(args);
}

XLA_FFI_Error *Overlay::fail_future(XLA_FFI_Future_SetError_Args *args) {
  XLA_FFI_Future_SetError_Args ours = *args;
  if (const auto whose = forget(args->future))
    ours.error = FailWith(original, whose->target, whose->where, args->error);
  return original->XLA_FFI_Future_SetError(&ours);
}

Overlay::Overlay(const XLA_FFI_Api *original)
    : original(original),
      functions{sizeof(functions), token_effects::Functions::kType, original->extension_start, &Publish},
      memory(new char[original->struct_size]) {
  std::memcpy(memory.get(), original, original->struct_size);
  api = reinterpret_cast<XLA_FFI_Api *>(memory.get());
  api->extension_start = reinterpret_cast<decltype(api->extension_start)>(&functions);
}

} // namespace

const XLA_FFI_Api *OverlayOf(const XLA_FFI_Api *original) {
  if (const Overlay *const known = Find(original)) return known->api;
  std::lock_guard lock(overlays_mutex);
  if (const Overlay *const known = Find(original)) return known->api; // added by another thread
  for (size_t at = 0; at < kMostXlas; ++at)
    if (overlays[at].load(std::memory_order_relaxed) == nullptr) {
      auto *const made = new Overlay(original);
      kPutInto[at](*made->api);
      overlays[at].store(made, std::memory_order_release);
      return made->api;
    }
  return original; // too many XLAs: handlers of this one have plain errors and cannot publish
}

} // namespace effects
