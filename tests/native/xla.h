// XLA as handlers see it: its own types, which its interface only declares, a table of its functions, and frames by
// which a handler is called, on a CPU or with a stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "check.h"
#include "dispatch/native/producer/device_token.h"
#include "xla/ffi/api/ffi.h"

struct XLA_FFI_Error {
  std::string message;
  XLA_FFI_Error_Code code;
};
struct XLA_FFI_Future { // one thread waits, and another completes it
  std::atomic<bool> available = false;
  std::atomic<XLA_FFI_Error *> error = nullptr;
};

namespace effects {

// What a call of a loaded program has: the device, its stream, and what the handler keeps. Its own lives as XLA's does.
struct Loaded {
  int32_t device = 0;
  void *stream = nullptr; // null: a CPU
  void *state = nullptr;
};

// Those that a handler of ours calls.
inline const XLA_FFI_Api &XlaForHandlers() {
  static const XLA_FFI_Api *const table = [] {
    const auto of = [](auto *args) { return reinterpret_cast<Loaded *>(args->ctx); };
    static const auto loaded = of;
    auto *const api = new XLA_FFI_Api{};
    api->struct_size = sizeof *api;
    api->XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args *args) {
      return new XLA_FFI_Error{args->message, args->errc};
    };
    api->XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args *args) { delete args->error; };
    api->XLA_FFI_Future_Create = [](XLA_FFI_Future_Create_Args *args) -> XLA_FFI_Error * {
      args->future = new XLA_FFI_Future;
      return nullptr;
    };
    api->XLA_FFI_Future_SetAvailable = [](XLA_FFI_Future_SetAvailable_Args *args) -> XLA_FFI_Error * {
      args->future->available = true;
      return nullptr;
    };
    api->XLA_FFI_Future_SetError = [](XLA_FFI_Future_SetError_Args *args) -> XLA_FFI_Error * {
      args->future->error = args->error;
      return nullptr;
    };
    api->XLA_FFI_State_Set = [](XLA_FFI_State_Set_Args *args) -> XLA_FFI_Error * {
      loaded(args)->state = args->state;
      return nullptr;
    };
    api->XLA_FFI_State_Get = [](XLA_FFI_State_Get_Args *args) -> XLA_FFI_Error * {
      args->state = loaded(args)->state;
      return nullptr;
    };
    api->XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args *args) -> XLA_FFI_Error * {
      args->device_ordinal = loaded(args)->device;
      return nullptr;
    };
    api->XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args *args) -> XLA_FFI_Error * {
      args->stream = loaded(args)->stream;
      return nullptr;
    };
    return api;
  }();
  return *table;
}

using Attribute = std::variant<int64_t, bool, std::string>;

// One call of a handler.
class Frame {
public:
  explicit Frame(Loaded &loaded) : loaded_(loaded) {}

  Frame &operand(void *data, XLA_FFI_DataType type, std::vector<int64_t> sizes) {
    args_.push_back(describe(data, type, std::move(sizes)));
    return *this;
  }
  Frame &result(void *data, XLA_FFI_DataType type, std::vector<int64_t> sizes) {
    rets_.push_back(describe(data, type, std::move(sizes)));
    return *this;
  }
  Frame &attributes(std::map<std::string, Attribute> attributes) {
    attributes_ = std::move(attributes);
    return *this;
  }

  // Returns the error's text; no text: there was none.
  std::string call(void *handler, XLA_FFI_ExecutionStage stage = XLA_FFI_ExecutionStage_EXECUTE) {
    std::vector<XLA_FFI_ArgType> arg_types(args_.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> ret_types(rets_.size(), XLA_FFI_RetType_BUFFER);
    std::vector<XLA_FFI_AttrType> attr_types;
    std::deque<XLA_FFI_ByteSpan> names, texts;
    std::deque<XLA_FFI_Scalar> scalars;
    std::vector<XLA_FFI_ByteSpan *> name_pointers;
    std::vector<void *> attr_pointers;
    for (auto &[name, value] : attributes_) { // sorted by name, as XLA has them
      name_pointers.push_back(&names.emplace_back(XLA_FFI_ByteSpan{name.data(), name.size()}));
      if (auto *const text = std::get_if<std::string>(&value)) {
        attr_types.push_back(XLA_FFI_AttrType_STRING);
        attr_pointers.push_back(&texts.emplace_back(XLA_FFI_ByteSpan{text->data(), text->size()}));
      } else {
        auto *const number = std::get_if<int64_t>(&value);
        attr_types.push_back(XLA_FFI_AttrType_SCALAR);
        attr_pointers.push_back(&scalars.emplace_back(
            number != nullptr ? XLA_FFI_Scalar{XLA_FFI_DataType_S64, number}
                              : XLA_FFI_Scalar{XLA_FFI_DataType_PRED, std::get_if<bool>(&value)}));
      }
    }
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &XlaForHandlers();
    frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext *>(&loaded_);
    frame.stage = stage;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(args_.size()), arg_types.data(),
                  args_.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(rets_.size()), ret_types.data(),
                  rets_.data()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                   nullptr,
                   static_cast<int64_t>(attr_types.size()),
                   attr_types.data(),
                   name_pointers.data(),
                   attr_pointers.data()};
    XLA_FFI_Error *const error = reinterpret_cast<XLA_FFI_Handler *>(handler)(&frame);
    future = frame.future;
    if (error == nullptr) return {};
    const std::string text = error->message.empty() ? "an error without a text" : error->message;
    delete error;
    return text;
  }

  XLA_FFI_Future *future = nullptr; // what the last call gave

private:
  void *describe(void *data, XLA_FFI_DataType type, std::vector<int64_t> sizes) {
    std::vector<int64_t> &kept = sizes_.emplace_back(std::move(sizes));
    return &buffers_.emplace_back(XLA_FFI_Buffer{XLA_FFI_Buffer_STRUCT_SIZE, nullptr, type, data,
                                                 static_cast<int64_t>(kept.size()), kept.data()});
  }

  Loaded &loaded_;
  std::deque<std::vector<int64_t>> sizes_;
  std::deque<XLA_FFI_Buffer> buffers_;
  std::vector<void *> args_, rets_;
  std::map<std::string, Attribute> attributes_;
};

} // namespace effects
