// Our additions are always last: a token among operands and results, and an attribute whose name sorts after all
// others. So they are removed by reducing the counts by one.
#include "custom_call.h"

#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "overlay.h"

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

namespace ffi = xla::ffi;

ffi::TypeId LoadedCall::id{};
ffi::TypeId LoadedPluginCall::id{};

MessageSite::MessageSite(uint64_t site, Kind kind, uint16_t flags, std::string_view description)
    : site_(site), kind_(kind), flags_(flags) {
  sites().retain(site, description);
  filter_ = sites().filter(site);
}

MessageSite::~MessageSite() { drain().release_site(site_); }

namespace {

// The layout of a message in a record.
struct MessageSpans {
  explicit MessageSpans(std::string_view text)
      : length(static_cast<int32_t>(text.size())), spans{{&length, sizeof length}, {text.data(), text.size()}} {}
  MessageSpans(const MessageSpans &) = delete;
  const int32_t length;
  const Span spans[2];
};

} // namespace

void MessageSite::publish(DeviceToken &token, int32_t device, std::string_view text) const {
  if (token.is_primary()) {
    const bool is_own = InRegion(token.token);
    const Decision decision = ordered() && (flags_ & kReplicated) != 0          ? filter_->shows_same(token.token)
                              : filter_->shows(is_own ? device : kAllDevices) ? Decision::kShow
                                                                                : Decision::kLeaveOut;
    if (decision == Decision::kShow)
      publisher().publish(kind_, site_, token.token, device, MessageSpans(text).spans, 2, flags_);
    else if (decision == Decision::kLeaveOut && ordered())
      publisher().skip(token.token, device);
  }
  if (ordered()) Take(kCountStep, token);
}

void MessageSite::publish_plain(int32_t device, std::string_view text) const {
  if (filter_->shows(kAllDevices)) PublishPlain(site_, ordered(), device, MessageSpans(text).spans, 2);
}

LoadedCall::LoadedCall(UserHandler handler, std::string_view target, std::string_view platform, std::string_view where,
                       int64_t site, int64_t traits, std::string_view description)
    : handler(handler), target(target), where(where), first_device(platform == "cuda" ? kFirstGpu : 0),
      has_token((traits & kCustomCallHasToken) != 0), has_more((traits & kCustomCallHasMore) != 0),
      counts((traits & kCustomCallCounts) != 0),
      messages(std::make_shared<const MessageSite>(
          static_cast<uint64_t>(site), (traits & kCustomCallIsOrdered) != 0 ? Kind::kOrdered : Kind::kUnordered,
          static_cast<uint16_t>(DevicesOf(traits) != 0 ? kReplicated : 0), description)) {}

namespace {

__attribute__((tls_model("initial-exec"))) // read in every call, and small
thread_local CurrentCall *current = nullptr;

// Our own buffers.
const XLA_FFI_Buffer &LastOperand(const XLA_FFI_CallFrame *frame) {
  return *static_cast<const XLA_FFI_Buffer *>(frame->args.args[frame->args.size - 1]);
}
const XLA_FFI_Buffer &LastResult(const XLA_FFI_CallFrame *frame) {
  return *static_cast<const XLA_FFI_Buffer *>(frame->rets.rets[frame->rets.size - 1]);
}
DeviceToken LoadToken(const XLA_FFI_Buffer &buffer) {
  return effects::LoadToken(buffer.data, static_cast<size_t>(buffer.dims[0]) * sizeof(uint32_t));
}

// The version of XLA's interface that a handler was compiled with.
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
template <typename Loaded>
ffi::ErrorOr<std::unique_ptr<Loaded>> Instantiate(Api api, ffi::Dictionary attributes) {
  try {
    auto ours = attributes.get<ffi::Dictionary>(attribute::kOurs);
    if (!ours.has_value()) return ffi::Unexpected(ours.error());
    auto target = ours->get<std::string_view>(attribute::kTarget),
         platform = ours->get<std::string_view>(attribute::kPlatform);
    auto where = ours->get<std::string_view>(attribute::kWhere),
         description = ours->get<std::string_view>(attribute::kDescription);
    auto site = ours->get<int64_t>(attribute::kSite), traits = ours->get<int64_t>(attribute::kTraits);
    if (!target.has_value() || !platform.has_value() || !where.has_value() || !description.has_value() ||
        !site.has_value() || !traits.has_value())
      return ffi::Unexpected(ffi::Error::Internal("A custom call does not describe itself."));
    const auto refuse = [&](ffi::ErrorCode code, const std::string &message) {
      return ffi::Unexpected(ffi::Error(
          code, DescribeFailure(std::string(*target), std::string(*where), static_cast<int>(code), message)));
    };
    const UserHandler handler = targets().find(std::string(*target), std::string(*platform));
    if (handler == nullptr)
      return refuse(ffi::ErrorCode::kNotFound,
                    "There is no handler for " + std::string(*platform) +
                        " in this process. A program calls handlers by name. Register it with "
                        "`fx.register_custom_call` before the program is loaded.");
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
    return std::make_unique<Loaded>(handler, *target, *platform, *where, *site, *traits, *description);
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A custom call could not be loaded: ") + error.what()));
  }
}
XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate<LoadedCall>, ffi::Ffi::BindInstantiate().Ctx<Api>().Attrs());
XLA_FFI_DEFINE_HANDLER(kInstantiateInPlugin, Instantiate<LoadedPluginCall>,
                       ffi::Ffi::BindInstantiate().Ctx<Api>().Attrs());

// Answers XLA's query for the version.
XLA_FFI_DEFINE_HANDLER(
    kMetadata, [](ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); },
    ffi::Ffi::Bind().RemainingArgs().RemainingRets());

XLA_FFI_Error *FailInternally(const CurrentCall &now, const std::string &what) {
  return Fail(now.xla, now.call->target, now.call->where, XLA_FFI_Error_Code_INTERNAL, what);
}

XLA_FFI_Error *CallUser(const CurrentCall &now, XLA_FFI_CallFrame *frame) {
  try {
    XLA_FFI_Error *const error = now.call->handler(frame);
    return error == nullptr ? nullptr : FailWith(now.xla, now.call->target, now.call->where, error);
  } catch (const std::exception &thrown) {
    return FailInternally(now, std::string("The handler threw a C++ exception: ") + thrown.what());
  } catch (...) {
    return FailInternally(now, "The handler threw something that is no C++ exception.");
  }
}

// The user handler's view of a call: the frame without our additions, which belongs to this call meanwhile.
class UsersFrame {
public:
  UsersFrame(XLA_FFI_CallFrame *frame, CurrentCall *now)
      : frame_(frame), api_(std::exchange(frame->api, OverlayOf(frame->api))), before_(std::exchange(current, now)) {
    change(-1);
  }
  UsersFrame(const UsersFrame &) = delete;
  ~UsersFrame() {
    change(1);
    current = before_; // calls of one thread may be nested
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
  CurrentCall *const before_;
};

// Some versions of JAX register handlers before their types: see extensions/cuda/native/handlers.cc, also for when this
// can go. So XLA's query for this handler's metadata is answered by a handler without a type.
XLA_FFI_Error *LoadInPlugin(XLA_FFI_CallFrame *frame) {
  return frame->extension_start != nullptr ? (*kMetadata)(frame) : (*kInstantiateInPlugin)(frame);
}

template <typename Loaded>
XLA_FFI_Error *Execute(XLA_FFI_CallFrame *frame) {
  if (frame->extension_start != nullptr) return (*kMetadata)(frame);
  try {
    XLA_FFI_State_Get_Args state{XLA_FFI_State_Get_Args_STRUCT_SIZE, nullptr,     frame->ctx,
                                 XLA_FFI_ExecutionStage_INSTANTIATE, &Loaded::id, nullptr};
    if (XLA_FFI_Error *error = frame->api->XLA_FFI_State_Get(&state)) return error;
    const LoadedCall &call = *static_cast<const Loaded *>(state.state);

    CurrentCall now{&call, frame->api, frame->ctx, {}};
    if (call.counts) now.token = LoadToken(LastOperand(frame));
    XLA_FFI_Error *error;
    {
      UsersFrame users(frame, &now);
      error = CallUser(now, frame);
    }
    if (call.counts) effects::StoreToken(now.token, LastResult(frame).data);
    if (error != nullptr && call.counts) // other devices of the program may wait for this one
      for (const auto &listener : listeners().when_program_fails)
        listener(ProgramOf(now.token.token), kProgramFailed);
    return error;
  } catch (...) { // no memory to report more
    XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, "A custom call could not be made.",
                                   XLA_FFI_Error_Code_RESOURCE_EXHAUSTED};
    return frame->api->XLA_FFI_Error_Create(&args);
  }
}

} // namespace

CurrentCall *current_call() { return current; }

void *LoadedCallTypeId(bool in_plugin) { return in_plugin ? &LoadedPluginCall::id : &LoadedCall::id; }
void *LoadedCallTypeInfo(bool in_plugin) {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedCall>(), of_plugin = ffi::MakeTypeInfo<LoadedPluginCall>();
  return in_plugin ? &of_plugin : &info;
}

std::vector<Handler> CustomCallHandlers(bool in_plugin) {
  const auto pointer = [](auto *handler) { return reinterpret_cast<void *>(handler); };
  if (in_plugin)
    return {{kCustomCallTarget, "instantiate", pointer(&LoadInPlugin)},
            {kCustomCallTarget, "execute", pointer(&Execute<LoadedPluginCall>)}};
  return {{kCustomCallTarget, "instantiate", pointer(kInstantiate)},
          {kCustomCallTarget, "execute", pointer(&Execute<LoadedCall>)}};
}

} // namespace effects
