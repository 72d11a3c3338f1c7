// The handler that calls the user's, which puts work into the stream. What it says belongs behind that: it is
// published, and the token counted, when the stream comes there.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "extensions/custom_calls/native/custom_call.h"
#include "guard.h"
#include "handlers.h"

namespace effects::cuda {
namespace {

Stream StreamOf(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Stream_Get_Args args{XLA_FFI_Stream_Get_Args_STRUCT_SIZE, nullptr, frame->ctx, nullptr};
  if (XLA_FFI_Error *const error = frame->api->XLA_FFI_Stream_Get(&args)) {
    XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    frame->api->XLA_FFI_Error_Destroy(&destroy);
    throw std::runtime_error("XLA gives no stream.");
  }
  return static_cast<Stream>(args.stream);
}

std::string PublishMessages(const LoadedCall &call, XLA_FFI_CallFrame *frame, int32_t ordinal, const Span &token,
                            const Out &next, std::vector<Message> messages) {
  constexpr char kNotShown[] = "What it printed could not be shown: ";
  try {
    const Driver &found = driver();
    const Stream stream = StreamOf(frame);
    const InContextOf context(found, stream);
    const bool counts = call.counts && call.messages->ordered();
    const size_t count = messages.size();
    auto publish = [site = call.messages, device = ordinal + kFirstGpu,
                    messages = std::move(messages)](Span *operands) {
      DeviceToken own = operands == nullptr ? DeviceToken{} : LoadToken(operands[0]);
      for (const Message &message : messages)
        if (operands == nullptr)
          site->publish_plain(device, message.level, message.text);
        else
          site->publish(own, device, message.level, message.text);
    };
    if (call.counts)
      Launch(found, stream, &token, 1, InProgram([publish](Span *operands, size_t) { publish(operands); }));
    else // of a program that JAX dispatches
      LaunchByHostFunction(found, stream, nullptr, 0, [publish](Span *, size_t) {
        host_failures().run(nullptr, kEffectLost, [&] { publish(nullptr); });
      });
    // How many there are no program knows, so here the host writes the next token.
    if (counts)
      LaunchWithResults(found, stream, &token, 1, {next},
                        [count](Span *operands, size_t, const std::vector<Out> &results) {
                          std::memcpy(results[0].data, operands[0].data, results[0].size); // if what follows fails
                          host_failures().run(operands, kEffectLost, [&] {
                            DeviceToken own = LoadToken(operands[0]);
                            for (size_t i = 0; i < count; ++i) Take(kCountStep, own);
                            StoreToken(own, results[0].data);
                          });
                        });
    return {};
  } catch (const DriverError &error) {
    return std::string(kNotShown) + error.what() + kRemedy;
  } catch (const std::exception &error) {
    return std::string(kNotShown) + error.what();
  }
}

} // namespace

void PublishMessagesOfCustomCalls() { SetPublishOnDevice(&PublishMessages); }

} // namespace effects::cuda
