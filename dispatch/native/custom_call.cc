// The handler that calls the user's: takes its own operand, result and attribute off the call, and puts what the call
// means in their place: where its records come, and whose its errors are. No exception leaves it.
//
// Ours is always last: of operands and results a token, of attributes one whose name sorts behind all others. So it is
// taken off by counting one less.
#include "custom_call.h"

#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <unordered_map>

#include "token_effects/custom_call.h"
#include "xla/ffi/api/ffi.h"

namespace effects {
namespace {

// XLA's functions, for a handler that is bound to arguments.
struct Api {
  const XLA_FFI_Api *functions;
};

} // namespace
} // namespace effects

template <>
struct xla::ffi::CtxDecoding<effects::Api> {
  using Type = effects::Api;
  static std::optional<Type> Decode(const XLA_FFI_Api *api, XLA_FFI_ExecutionContext *, DiagnosticEngine &) {
    return Type{api};
  }
};

namespace effects {
namespace {

namespace ffi = xla::ffi;

// The traits of a call, in one attribute; see `lowering/_custom_call.py`.
constexpr int64_t kHasToken = 1, kCounts = 2, kIsOrdered = 4, kHasMore = 8, kDevicesMask = 0xffffff;
constexpr int kDevicesShift = 8;

// What a loaded program keeps of a custom call.
struct LoadedCall {
  static ffi::TypeId id;

  UserHandler handler;
  std::string target, where;
  uint64_t site;
  bool has_token; // behind the operands
  bool has_more;  // there is something behind the results
  bool counts;    // it is one of ours, in memory that we can read
  Kind kind;      // of the records that the handler publishes
  uint16_t flags;

  LoadedCall(UserHandler handler, std::string_view target, std::string_view where, int64_t site_id, int64_t traits,
             std::string_view description)
      : handler(handler), target(target), where(where), site(static_cast<uint64_t>(site_id)),
        has_token((traits & kHasToken) != 0), has_more((traits & kHasMore) != 0), counts((traits & kCounts) != 0),
        kind(traits & kIsOrdered ? Kind::kOrdered : Kind::kUnordered),
        flags(traits >> kDevicesShift & kDevicesMask ? kReplicated : 0) {
    sites().retain(site, description);
  }
  LoadedCall(const LoadedCall &) = delete;
  ~LoadedCall() { drain().release_site(site); }
};
ffi::TypeId LoadedCall::id{};

// The call that runs in this thread.
struct Current {
  const LoadedCall *call;
  XLA_FFI_ExecutionContext *context;
  Place place;
};
#if defined(__ELF__)
__attribute__((tls_model("initial-exec"))) // looked at in every call, and small
#endif
thread_local Current *current = nullptr;

const XLA_FFI_Buffer &LastBuffer(void *const *buffers, int64_t count) {
  return *static_cast<const XLA_FFI_Buffer *>(buffers[count - 1]);
}
Place LoadPlace(const XLA_FFI_CallFrame *frame) {
  const XLA_FFI_Buffer &buffer = LastBuffer(frame->args.args, frame->args.size);
  return effects::LoadPlace(buffer.data, static_cast<size_t>(buffer.dims[0]) * sizeof(uint32_t));
}
void StorePlace(const Place &place, const XLA_FFI_CallFrame *frame) {
  effects::StorePlace(place, LastBuffer(frame->rets.rets, frame->rets.size).data);
}

int32_t DeviceOf(XLA_FFI_ExecutionContext *context);

constexpr char kNoCall[] =
    "A record was published by a handler that has returned, or by a thread other than its own. It would have no place "
    "in the program's order. Publish before the handler returns, in the thread that runs it.";

// What handlers call through `token_effects::Call`.
const char *Publish(int32_t level, const char *text, size_t size) {
  if (current == nullptr) return kNoCall;
  const LoadedCall &call = *current->call;
  const int32_t device = DeviceOf(current->context);
  const int32_t length = static_cast<int32_t>(size);
  const Span spans[] = {{&length, sizeof length}, {&level, sizeof level}, {text, size}};
  if (call.counts) {
    Place &place = current->place;
    if (place.speaks()) publisher().publish(call.kind, call.site, place.token, device, spans, 3, call.flags);
    if (call.kind == Kind::kOrdered) CountOn(place, device, place.speaks());
  } else {
    PublishPlain(call.site, call.kind == Kind::kOrdered, device, spans, 3);
  }
  return nullptr;
}

// XLA's functions as the user's handler sees them: some are ours, so that an error can be told whose it is.
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
  };
  std::unordered_map<XLA_FFI_Future *, Whose> futures; // that are not there yet

  explicit Overlay(const XLA_FFI_Api *original);
};
Overlay *overlay = nullptr; // written once, before the first call

int32_t DeviceOf(XLA_FFI_ExecutionContext *context) {
  XLA_FFI_DeviceOrdinal_Get_Args args{XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, nullptr, context, 0};
  if (XLA_FFI_Error *error = overlay->original->XLA_FFI_DeviceOrdinal_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    overlay->original->XLA_FFI_Error_Destroy(&destroy);
  }
  return args.device_ordinal;
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

// What XLA is told of a failure, and keeps it for who asks by the number in it.
std::string Say(const std::string &target, const std::string &where, int code, const std::string &message) {
  const uint64_t number = custom_call_failures().add({0, target, where, message, code});
  return "Custom call `" + target + "` at " + where + " failed: " + Readable(message) + " (custom call failure " +
         std::to_string(number) + ")";
}

// An error that says whose it is, in place of the handler's.
XLA_FFI_Error *Fail(const std::string &target, const std::string &where, XLA_FFI_Error_Code code,
                    const std::string &message) {
  return NewError(code, Say(target, where, static_cast<int>(code), message));
}

XLA_FFI_Error *FailWith(const std::string &target, const std::string &where, XLA_FFI_Error *error) {
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
  return Fail(target, where, details.code, details.message);
}

XLA_FFI_Error *CreateFuture(XLA_FFI_Future_Create_Args *args) {
  XLA_FFI_Error *error = overlay->original->XLA_FFI_Future_Create(args);
  if (error == nullptr && current != nullptr) {
    std::lock_guard lock(overlay->mutex);
    overlay->futures[args->future] = {current->call->target, current->call->where};
  }
  return error;
}

// Who waits for a future may go on in the call that completes it, so no lock is held there.
std::optional<Overlay::Whose> Forget(XLA_FFI_Future *future) {
  std::lock_guard lock(overlay->mutex);
  const auto it = overlay->futures.find(future);
  if (it == overlay->futures.end()) return std::nullopt;
  std::optional<Overlay::Whose> whose = std::move(it->second);
  overlay->futures.erase(it);
  return whose;
}

XLA_FFI_Error *CompleteFuture(XLA_FFI_Future_SetAvailable_Args *args) {
  Forget(args->future);
  return overlay->original->XLA_FFI_Future_SetAvailable(args);
}

XLA_FFI_Error *FailFuture(XLA_FFI_Future_SetError_Args *args) {
  XLA_FFI_Future_SetError_Args ours = *args;
  if (const auto whose = Forget(args->future)) ours.error = FailWith(whose->target, whose->where, args->error);
  return overlay->original->XLA_FFI_Future_SetError(&ours);
}

Overlay::Overlay(const XLA_FFI_Api *original)
    : original(original), functions{sizeof(functions), token_effects::Functions::kType, original->extension_start,
                                    &Publish},
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

// The version of XLA's interface with which a handler was compiled.
XLA_FFI_Api_Version VersionOf(UserHandler handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  handler(&frame);
  return metadata.api_version;
}

// When a program is loaded.
ffi::ErrorOr<std::unique_ptr<LoadedCall>> Instantiate(Api api, ffi::Dictionary attributes) {
  try {
    auto ours = attributes.get<ffi::Dictionary>("~effects");
    if (!ours.has_value()) return ffi::Unexpected(ours.error());
    auto target = ours->get<std::string_view>("target"), platform = ours->get<std::string_view>("platform");
    auto where = ours->get<std::string_view>("where"), description = ours->get<std::string_view>("description");
    auto site = ours->get<int64_t>("site"), traits = ours->get<int64_t>("traits");
    if (!target.has_value() || !platform.has_value() || !where.has_value() || !description.has_value() ||
        !site.has_value() || !traits.has_value())
      return ffi::Unexpected(ffi::Error::Internal("A custom call does not describe itself."));
    const auto refuse = [&](ffi::ErrorCode code, const std::string &message) {
      return ffi::Unexpected(
          ffi::Error(code, Say(std::string(*target), std::string(*where), static_cast<int>(code), message)));
    };
    const UserHandler handler = targets().find(std::string(*target), std::string(*platform));
    if (handler == nullptr) {
      std::string known;
      for (const std::string &name : targets().names()) known += (known.empty() ? "`" : ", `") + name + "`";
      return refuse(ffi::ErrorCode::kNotFound,
                    "There is no handler for " + std::string(*platform) +
                        " in this process. A program calls handlers by name; registered are " +
                        (known.empty() ? "none" : known) +
                        ". Register it with `fx.register_custom_call` before the program is loaded.");
    }
    const XLA_FFI_Api_Version theirs = VersionOf(handler), xlas = api.functions->api_version;
    if (theirs.major_version != xlas.major_version || theirs.minor_version > xlas.minor_version) {
      const auto shown = [](const XLA_FFI_Api_Version &version) {
        return std::to_string(version.major_version) + "." + std::to_string(version.minor_version);
      };
      return refuse(ffi::ErrorCode::kFailedPrecondition,
                    "Its handler was compiled for version " + shown(theirs) + " of XLA's interface, and this XLA has " +
                        shown(xlas) +
                        ". XLA calls handlers that are not newer than itself. Compile it with the headers "
                        "in `jax.ffi.include_dir()` of this JAX, or of an older one.");
    }
    return std::make_unique<LoadedCall>(handler, *target, *where, *site, *traits, *description);
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A custom call could not be loaded: ") + error.what()));
  }
}
XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Ctx<Api>().Attrs());

// Answers when XLA asks for the version.
XLA_FFI_DEFINE_HANDLER(
    kMetadata, [](ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); },
    ffi::Ffi::Bind().RemainingArgs().RemainingRets());

// A handler that threw.
XLA_FFI_Error *FailThrown(const LoadedCall &call, const std::string &what) {
  return Fail(call.target, call.where, XLA_FFI_Error_Code_INTERNAL, what);
}

XLA_FFI_Error *CallUser(const LoadedCall &call, XLA_FFI_CallFrame *frame) {
  try {
    XLA_FFI_Error *const error = call.handler(frame);
    return error == nullptr ? nullptr : FailWith(call.target, call.where, error);
  } catch (const std::exception &thrown) {
    return FailThrown(call, std::string("The handler threw a C++ exception: ") + thrown.what());
  } catch (...) {
    return FailThrown(call, "The handler threw something that is no C++ exception.");
  }
}

// What the user's handler sees while it runs: the frame without what is ours, which is this call's alone meanwhile.
class UsersFrame {
public:
  UsersFrame(XLA_FFI_CallFrame *frame, Current *now)
      : frame_(frame), api_(std::exchange(frame->api, overlay->api)), before_(std::exchange(current, now)) {
    change(-1);
  }
  UsersFrame(const UsersFrame &) = delete;
  ~UsersFrame() {
    change(1);
    current = before_; // a handler may have been called while another of this thread's ran
    frame_->api = api_;
  }

private:
  void change(int64_t by) {
    const LoadedCall &call = *current->call;
    frame_->args.size += by * call.has_token;
    frame_->rets.size += by * call.has_more;
    frame_->attrs.size += by;
  }
  XLA_FFI_CallFrame *const frame_;
  const XLA_FFI_Api *const api_;
  Current *const before_;
};

XLA_FFI_Error *Execute(XLA_FFI_CallFrame *frame) {
  if (frame->extension_start != nullptr) return (*kMetadata)(frame);
  try {
    static Overlay *const ours = overlay = new Overlay(frame->api);

    XLA_FFI_State_Get_Args state{XLA_FFI_State_Get_Args_STRUCT_SIZE, nullptr,         frame->ctx,
                                 XLA_FFI_ExecutionStage_INSTANTIATE, &LoadedCall::id, nullptr};
    if (XLA_FFI_Error *error = ours->original->XLA_FFI_State_Get(&state)) return error;
    const LoadedCall &call = *static_cast<const LoadedCall *>(state.state);

    Current now{&call, frame->ctx, {}};
    if (call.counts) now.place = LoadPlace(frame);
    XLA_FFI_Error *error;
    {
      const UsersFrame users(frame, &now);
      error = CallUser(call, frame);
    }
    if (call.counts) StorePlace(now.place, frame);
    return error;
  } catch (...) { // there is no memory left to say more
    XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, "A custom call could not be made.",
                                   XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
    return frame->api->XLA_FFI_Error_Create(&args);
  }
}

} // namespace

Targets &targets() {
  static auto *const instance = new Targets();
  return *instance;
}
CustomCallFailures &custom_call_failures() {
  static auto *const instance = new CustomCallFailures();
  return *instance;
}

void *LoadedCallTypeId() { return &LoadedCall::id; }
void *LoadedCallTypeInfo() {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedCall>();
  return &info;
}

std::vector<Handler> CustomCallHandlers() {
  return {{"effects_custom_call", "instantiate", reinterpret_cast<void *>(kInstantiate)},
          {"effects_custom_call", "execute", reinterpret_cast<void *>(&Execute)}};
}

} // namespace effects
