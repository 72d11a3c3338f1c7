// The handler that calls the user's: takes its own operand, result and attribute off the call, and puts what the call
// means in their place: where its records come, and whose its errors are. No exception leaves it. The device's thread
// calls it.
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

// Where the messages of a call belong. While it lives, their site is retained.
class MessageSite {
public:
  MessageSite(uint64_t site, Kind kind, uint16_t flags, std::string_view description);
  MessageSite(const MessageSite &) = delete;
  ~MessageSite();

  bool ordered() const { return kind_ == Kind::kOrdered; }

  // At the place of the token, which goes on.
  void publish(DeviceToken &token, int32_t device, int32_t level, std::string_view text) const;
  // In a program that JAX dispatches, or on a GPU.
  void publish_plain(int32_t device, int32_t level, std::string_view text) const;

private:
  const uint64_t site_;
  const Kind kind_;
  const uint16_t flags_;
  std::shared_ptr<Filter> filter_;
};

// What a loaded program keeps of a custom call.
struct LoadedCall {
  static xla::ffi::TypeId id;

  UserHandler handler;
  std::string target, where;
  int32_t first_device; // the number of the platform's first device in records
  bool has_token;       // behind the operands
  bool has_more;        // there is something behind the results
  bool counts;          // it is one of ours, in the host's memory
  std::shared_ptr<const MessageSite> messages;

  LoadedCall(UserHandler handler, std::string_view target, std::string_view platform, std::string_view where,
             int64_t site, int64_t traits, std::string_view description);
};

// The same where XLA is a plugin, as for GPUs: it numbers types by itself, so that the type is another.
struct LoadedPluginCall : LoadedCall {
  static xla::ffi::TypeId id;
  using LoadedCall::LoadedCall;
};

void *LoadedCallTypeId(bool in_plugin);
void *LoadedCallTypeInfo(bool in_plugin);

// What a call's buffers are, as the user's handler sees it. XLA describes the buffers of another call in the same
// memory once the handler has returned, and a handler that answers later may still look there.
class BufferViews {
public:
  // Of a frame that has nothing of ours.
  void take(const XLA_FFI_CallFrame &frame);
  void **operands() { return pointers_.data(); }
  void **results() { return pointers_.data() + num_operands_; }

private:
  size_t num_operands_ = 0;
  std::vector<XLA_FFI_Buffer> buffers_; // their dimensions belong to the loaded program
  std::vector<void *> pointers_;
};

// The call that runs in a thread.
struct CurrentCall {
  const LoadedCall *call;
  const XLA_FFI_Api *xla; // its functions
  XLA_FFI_ExecutionContext *context;
  DeviceToken token;
  std::shared_ptr<BufferViews> views;
  bool answers_later = false;
};

// The calling thread's; null if none runs there.
CurrentCall *current_call();

// The stages of the handler.
std::vector<Handler> CustomCallHandlers(bool in_plugin);

} // namespace effects
