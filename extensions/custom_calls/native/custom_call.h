// The handler that calls the user's handler. It removes its own operand, result and attribute from the call, and keeps
// what they say: the place of the call's records, and the name for its errors. It throws no exception. The device's
// thread calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/native/producer/device_token.h"
#include "dispatch/native/wire.h"
#include "dispatch/native/xla/runtime.h"
#include "targets.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

// The place of a call's messages. Retains their site while it lives.
class MessageSite {
public:
  MessageSite(uint64_t site, Kind kind, uint16_t flags, std::string_view description);
  MessageSite(const MessageSite &) = delete;
  ~MessageSite();

  bool ordered() const { return kind_ == Kind::kOrdered; }

  // At the place of the token, which is advanced.
  void publish(DeviceToken &token, int32_t device, std::string_view text) const;
  // In a program that JAX dispatches, or on a GPU.
  void publish_plain(int32_t device, std::string_view text) const;

private:
  const uint64_t site_;
  const Kind kind_;
  const uint16_t flags_;
  std::shared_ptr<Filter> filter_;
};

// A custom call of a loaded program.
struct LoadedCall {
  static xla::ffi::TypeId id;

  UserHandler handler;
  std::string target, where;
  int32_t first_device; // the number of the platform's first device in records
  bool has_token;       // after the operands
  bool has_more;        // more than results is returned
  bool counts;          // it is an effect of ours, with its token in host memory
  std::shared_ptr<const MessageSite> messages;

  LoadedCall(UserHandler handler, std::string_view target, std::string_view platform, std::string_view where,
             int64_t site, int64_t traits, std::string_view description);
};

// The same for an XLA in a plugin, as for GPUs: each XLA numbers types separately, so the type is another.
struct LoadedPluginCall : LoadedCall {
  static xla::ffi::TypeId id;
  using LoadedCall::LoadedCall;
};

void *LoadedCallTypeId(bool in_plugin);
void *LoadedCallTypeInfo(bool in_plugin);

// The call that runs in a thread.
struct CurrentCall {
  const LoadedCall *call;
  const XLA_FFI_Api *xla; // the functions of the call's XLA
  XLA_FFI_ExecutionContext *context;
  DeviceToken token;
};

// The calling thread's call; null if there is none.
CurrentCall *current_call();

// The stages of the handler.
std::vector<Handler> CustomCallHandlers(bool in_plugin);

} // namespace effects
