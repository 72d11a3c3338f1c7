#include "handlers.h"

#include <exception>
#include <memory>
#include <string_view>
#include <utility>

#include "dispatch/native/xla/bodies.h"
#include "dispatch/native/xla/operands.h"
#include "dispatch/native/xla/region_bindings.h"
#include "guard.h"

namespace effects::cuda {

namespace ffi = xla::ffi;

ffi::TypeId LoadedCudaSite::id{};

void *LoadedCudaSiteTypeId() { return &LoadedCudaSite::id; }
void *LoadedCudaSiteTypeInfo() {
  static ffi::TypeInfo info = ffi::MakeTypeInfo<LoadedCudaSite>();
  return &info;
}

namespace {

constexpr char kNotCounted[] = "A program that was lowered for other platforms is loaded for CUDA. Its handlers would "
                               "write tokens into the host's "
                               "memory, where this platform has none. Lower or export it anew, for this platform too.";

// The user's line (file, line and function) from a site's description.
std::string WhereOf(std::string_view description) {
  constexpr std::string_view kKey = "\"where\":[\"", kUnknown = "an unknown line";
  const size_t key = description.rfind(kKey);
  if (key == description.npos) return std::string(kUnknown);
  const std::string_view rest = description.substr(key + kKey.size());
  const size_t file = rest.find("\",");
  if (file == rest.npos) return std::string(kUnknown);
  const size_t line = rest.find(',', file + 2);
  return std::string(rest.substr(0, file)) + ":" + std::string(rest.substr(file + 2, line - file - 2));
}

constexpr char kNoEnd[] = "The end of a program could not be recorded on the device.";
constexpr char kNoRegion[] = "A device could not record that it enters or leaves a region.";

// Before a program begins: see PrepareLaunch().
ffi::Error Prepare(Stream stream, ffi::RemainingArgs args, ffi::RemainingRets) {
  try {
    const Driver &found = driver();
    Spans buffers(args, 0);
    const InContextOf context(found, stream);
    PrepareLaunch(found, stream, buffers.data(), buffers.size());
  } catch (const std::exception &) { // the launch fails too, with its line in the error
  }
  return ffi::Error::Success();
}

// (token, *operands) -> token: see PublishRecord().
ffi::Error Record(LoadedCudaSite *loaded, ffi::Dictionary, int32_t device, Stream stream, ffi::RemainingArgs args,
                  ffi::RemainingRets) {
  return Guard(loaded->not_recorded, [&] {
    std::vector<std::vector<int64_t>> sizes;
    for (size_t i = 1; loaded->site->has_whole_values() && i < args.size(); ++i) {
      const auto dims = args.get<ffi::AnyBuffer>(i).value().dimensions();
      sizes.emplace_back(dims.begin(), dims.end());
    }
    const auto publish = [site = loaded->site, device, sizes = std::move(sizes)](Span *operands, size_t count) {
      DeviceToken token = site->token(operands[0]);
      PublishRecord(*site, device, token, operands + 1, count - 1, [&] {
        std::vector<Dims> dims;
        for (const std::vector<int64_t> &each : sizes) dims.push_back({each.data(), each.size()});
        return dims;
      });
    };
    LaunchAll(&Launch, stream, args, 0, InProgram(publish));
  });
}

// Launches the publication of a call, waits for the answer, and launches the copies of the results. `publish` gets the
// waiter.
template <typename Body>
ffi::Error AwaitCall(const LoadedCudaSite &loaded, Stream stream, ffi::RemainingArgs args, size_t first,
                     ffi::RemainingRets rets, Body publish) {
  std::string failed; // the callback
  ffi::Error error = Guard(loaded.not_recorded, [&] {
    const Driver &found = driver();
    Spans buffers(args, first);
    const InContextOf context(found, stream);
    const auto answered = std::make_shared<Answered>(found, OutsOf(rets));
    // Shared by the launch and the waiter. When both are destroyed, no answer can come any more.
    std::shared_ptr<Answered> asked(answered.get(), [answered](Answered *) { answered->give_up(); });
    Launch(found, stream, buffers.data(), buffers.size(),
           [asked = std::move(asked), publish](Span *operands, size_t count) {
             try {
               publish(operands, count, [asked](const Answer &answer) {
                 asked->take(answer);
                 return Continuation([asked](const std::string &failed) { asked->go_on(failed); });
               });
             } catch (const std::exception &error) {
               asked->fail(error.what());
             }
           });
    failed = answered->wait(found, stream);
    if (failed.empty()) answered->launch_results(found, stream);
  });
  return failed.empty() ? error : ffi::Error::Internal(failed);
}

// (token, *operands) -> (*results, token): one record of a callback.
ffi::Error Call(LoadedCudaSite *loaded, ffi::Dictionary, int32_t device, Stream stream, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  return AwaitCall(*loaded, stream, args, 0, rets,
                   [site = loaded->site, device](Span *operands, size_t count, Replies::Waiter waiter) {
                     const DeviceToken token = site->token(operands[0]);
                     NextOfCall(*site, token);
                     PublishCall(*site, device, token, operands + 1, count - 1, std::move(waiter));
                   });
}

// (*tokens) -> token: the program will publish no more.
ffi::Error Close(int64_t devices, int32_t device, Stream stream, ffi::RemainingArgs tokens, ffi::RemainingRets) {
  return Guard(kNoEnd, [&] {
    LaunchAll(&Launch, stream, tokens, 0, InProgram([devices, device](const Span *operands, size_t count) {
      PublishEnd(operands, count, device, static_cast<uint32_t>(devices));
    }));
  });
}

// (*tokens) -> (*tokens): see PublishEntrance(). The program advances them.
ffi::Error Enter(int64_t ordered, int64_t devices, bool apart, bool parts, bool, int32_t device, Stream stream,
                 ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard(kNoRegion, [&] {
    const Entrance entrance{rets.size(), static_cast<size_t>(ordered), static_cast<uint32_t>(devices), apart, parts};
    LaunchAll(&Launch, stream, args, 0, InProgram([entrance, device](const Span *operands, size_t) {
      PublishEntrance(entrance, operands, device);
    }));
  });
}

// (*tokens, *tokens at the entry) -> (*tokens): see PublishExit().
ffi::Error Leave(int64_t ordered, bool, int32_t device, Stream stream, ffi::RemainingArgs args,
                 ffi::RemainingRets rets) {
  return Guard(kNoRegion, [&] {
    LaunchAll(&Launch, stream, args, 0,
              InProgram([num_tokens = rets.size(), ordered, device](const Span *operands, size_t) {
                PublishExit(num_tokens, static_cast<size_t>(ordered), operands, device);
              }));
  });
}

// (token) -> (token): see PublishSkip().
ffi::Error Skip(int64_t count, bool, int32_t device, Stream stream, ffi::RemainingArgs args, ffi::RemainingRets) {
  return Guard(kNoRegion, [&] {
    LaunchAll(&Launch, stream, args, 0, InProgram([count, device](const Span *operands, size_t) {
      PublishSkip(static_cast<uint32_t>(count), operands[0], device);
    }));
  });
}

// (*tokens, *values) -> the values, aliased: they are available after the effects of the tokens.
ffi::Error After(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

// (*operands) -> nothing, or with an XLA token in and out.
ffi::Error Plain(LoadedCudaSite *loaded, ffi::Dictionary, int32_t device, Stream stream, ffi::RemainingArgs operands,
                 ffi::RemainingRets) {
  return Guard(loaded->not_recorded, [&] {
    LaunchAll(&LaunchByHostFunction, stream, operands, loaded->site->ordered() ? 1 : 0,
              [site = loaded->site, device](const Span *spans, size_t count) {
                host_failures().run(nullptr, kEffectLost, [&] {
                  if (site->shows(device, {}, spans) != Decision::kShow) return;
                  PublishPlain(site->site, site->ordered(), device, spans, count, site->flags);
                });
              });
  });
}

// As `Plain`, with results.
ffi::Error PlainCall(LoadedCudaSite *loaded, ffi::Dictionary, int32_t device, Stream stream, ffi::RemainingArgs args,
                     ffi::RemainingRets rets) {
  return AwaitCall(*loaded, stream, args, loaded->site->ordered() ? 1 : 0, rets,
                   [site = loaded->site, device](const Span *operands, size_t count, Replies::Waiter waiter) {
                     PublishPlainCall(*site, device, operands, count, std::move(waiter));
                   });
}

ffi::ErrorOr<std::unique_ptr<LoadedCudaSite>> LoadSite(const ffi::Dictionary &attributes, bool counts) {
  try {
    auto loaded = std::make_unique<LoadedCudaSite>();
    const SiteAttributes read = ReadSite(attributes);
    loaded->site = std::make_shared<const LoadedSite>(read);
    if (counts && !loaded->site->has(kRecordIsCounted))
      return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kFailedPrecondition, kNotCounted));
    loaded->where = WhereOf(read.description);
    loaded->not_recorded = "The effect at " + loaded->where + " could not be recorded on the device.";
    return loaded;
  } catch (const std::exception &error) {
    return ffi::Unexpected(ffi::Error::Internal(std::string("A site could not be registered: ") + error.what()));
  }
}
// When a program is loaded.
ffi::ErrorOr<std::unique_ptr<LoadedCudaSite>> LoadCounted(ffi::Dictionary attributes) {
  return LoadSite(attributes, true);
}
ffi::ErrorOr<std::unique_ptr<LoadedCudaSite>> LoadPlain(ffi::Dictionary attributes) {
  return LoadSite(attributes, false);
}

XLA_FFI_DEFINE_HANDLER(kLoadCounted, LoadCounted, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kLoadPlain, LoadPlain, ffi::Ffi::BindInstantiate().Attrs());
XLA_FFI_DEFINE_HANDLER(kPrepare, Prepare,
                       ffi::Ffi::BindInitialize().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kAfter, After, ffi::Ffi::Bind().RemainingArgs().RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});

// JAX's plugin registers handlers before their types, at least up to version 0.10, and XLA refuses a handler of an
// unknown type. So XLA's query for a handler's metadata is answered by a handler without a type. This can go when all
// supported plugins register types first, as `initialize` in jax_plugins/cuda/__init__.py of JAX's main branch does.
template <XLA_FFI_Handler *const &load>
XLA_FFI_Error *Load(XLA_FFI_CallFrame *frame) {
  return frame->extension_start != nullptr ? (*kAfter)(frame) : (*load)(frame);
}

#define EFFECTS_DEFINE_HANDLER_OF_SITE(name, body)                                                                     \
  XLA_FFI_DEFINE_HANDLER(name, body,                                                                                   \
                         ffi::Ffi::Bind()                                                                              \
                             .Ctx<ffi::State<LoadedCudaSite>>()                                                        \
                             .Attrs()                                                                                  \
                             .Ctx<DeviceNumber>()                                                                      \
                             .Ctx<ffi::PlatformStream<Stream>>()                                                       \
                             .RemainingArgs()                                                                          \
                             .RemainingRets())
EFFECTS_DEFINE_HANDLER_OF_SITE(kRecord, Record);
EFFECTS_DEFINE_HANDLER_OF_SITE(kCall, Call);
EFFECTS_DEFINE_HANDLER_OF_SITE(kPlain, Plain);
EFFECTS_DEFINE_HANDLER_OF_SITE(kPlainCall, PlainCall);
#undef EFFECTS_DEFINE_HANDLER_OF_SITE

XLA_FFI_DEFINE_HANDLER(kClose, Close,
                       ffi::Ffi::Bind()
                           .Attr<int64_t>(attribute::kDevices)
                           .Ctx<DeviceNumber>()
                           .Ctx<ffi::PlatformStream<Stream>>()
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kEnter, Enter,
                       BindEnter<DeviceNumber>().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kLeave, Leave,
                       BindLeave<DeviceNumber>().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kSkip, Skip,
                       BindSkip<DeviceNumber>().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());

} // namespace

const std::vector<Handler> &handlers() {
  static constexpr char kOnLoad[] = "instantiate", kOnBegin[] = "initialize", kRun[] = "execute";
  const auto pointer = [](auto *handler) { return reinterpret_cast<void *>(handler); };
  static const auto *const all = [&] {
    auto *const handlers = new std::vector<Handler>{
        {kRecordTarget, kOnLoad, pointer(&Load<kLoadCounted>)},
        {kRecordTarget, kOnBegin, pointer(kPrepare)},
        {kRecordTarget, kRun, pointer(kRecord)},
        {kCallTarget, kOnLoad, pointer(&Load<kLoadCounted>)},
        {kCallTarget, kRun, pointer(kCall)},
        {kCloseTarget, kOnBegin, pointer(kPrepare)},
        {kCloseTarget, kRun, pointer(kClose)},
        {kEnterTarget, kRun, pointer(kEnter)},
        {kLeaveTarget, kRun, pointer(kLeave)},
        {kSkipTarget, kRun, pointer(kSkip)},
        {kAfterTarget, kRun, pointer(kAfter)},
        {kPlainTarget, kOnLoad, pointer(&Load<kLoadPlain>)},
        {kPlainTarget, kRun, pointer(kPlain)},
        {kPlainCallTarget, kOnLoad, pointer(&Load<kLoadPlain>)},
        {kPlainCallTarget, kRun, pointer(kPlainCall)},
        {kBeginTarget, kOnLoad, pointer(&Load<kLoadPlain>)},
    };
    for (const Handler &handler : OperationHandlers()) handlers->push_back(handler);
    return handlers;
  }();
  return *all;
}

} // namespace effects::cuda
