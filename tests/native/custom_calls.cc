// Handlers for tests/lowering/custom_call.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "token_effects/custom_call.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

std::mutex mutex;
std::vector<int32_t> seen; // by the handlers that note what they are given

// x -> x + by
ffi::Error Add(ffi::Buffer<ffi::F32> x, float by, ffi::ResultBuffer<ffi::F32> y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = x.typed_data()[i] + by;
  return ffi::Error::Success();
}

// Notes its operand, and hands it on.
ffi::Error Note(ffi::Buffer<ffi::S32> x, ffi::ResultBuffer<ffi::S32> y) {
  std::lock_guard lock(mutex);
  seen.push_back(x.typed_data()[0]);
  y->typed_data()[0] = x.typed_data()[0];
  return ffi::Error::Success();
}

// Notes an attribute; no operands, no results.
ffi::Error NoteAttribute(int64_t value) {
  std::lock_guard lock(mutex);
  seen.push_back(static_cast<int32_t>(value));
  return ffi::Error::Success();
}

// The sizes of all buffers, in their order: operands first. Of any number of any types.
ffi::Error Sizes(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  auto out = rets.get<ffi::Buffer<ffi::S32>>(0);
  if (!out.has_value()) return out.error();
  int32_t *at = (*out)->typed_data(), *end = at + (*out)->element_count();
  for (size_t i = 0; i < args.size() && at != end; ++i)
    *at++ = static_cast<int32_t>(args.get<ffi::AnyBuffer>(i)->size_bytes());
  for (size_t i = 0; i < rets.size() && at != end; ++i)
    *at++ = static_cast<int32_t>((*rets.get<ffi::AnyBuffer>(i))->size_bytes());
  while (at != end) *at++ = -1;
  return ffi::Error::Success();
}

// What attributes there are, as text.
ffi::Error Attributes(ffi::Dictionary attributes, ffi::ResultBuffer<ffi::U8> out) {
  std::string text;
  auto add = [&](auto &&self, const ffi::Dictionary &dictionary) -> void {
    for (auto it = dictionary.begin(); it != dictionary.end(); ++it) {
      const std::string_view name = *it;
      text += std::string(name) + "=";
      if (auto value = dictionary.get<std::string_view>(name); value.has_value()) {
        text += "'" + std::string(*value) + "'";
      } else if (auto value = dictionary.get<bool>(name); value.has_value()) {
        text += *value ? "true" : "false";
      } else if (auto value = dictionary.get<int64_t>(name); value.has_value()) {
        text += std::to_string(*value) + "i64";
      } else if (auto value = dictionary.get<int32_t>(name); value.has_value()) {
        text += std::to_string(*value) + "i32";
      } else if (auto value = dictionary.get<float>(name); value.has_value()) {
        text += std::to_string(*value) + "f32";
      } else if (auto value = dictionary.get<double>(name); value.has_value()) {
        text += std::to_string(*value) + "f64";
      } else if (auto value = dictionary.get<ffi::Span<const float>>(name); value.has_value()) {
        text += "[";
        for (const float one : *value) text += std::to_string(one) + ",";
        text += "]f32";
      } else if (auto value = dictionary.get<ffi::Span<const int64_t>>(name); value.has_value()) {
        text += "[";
        for (const int64_t one : *value) text += std::to_string(one) + ",";
        text += "]i64";
      } else if (auto value = dictionary.get<ffi::Dictionary>(name); value.has_value()) {
        text += "{";
        self(self, *value);
        text += "}";
      } else {
        text += "?";
      }
      text += " ";
    }
  };
  add(add, attributes);
  const size_t size = out->element_count();
  std::memset(out->typed_data(), 0, size);
  std::memcpy(out->typed_data(), text.data(), std::min(size, text.size()));
  return ffi::Error::Success();
}

// The sum, by way of scratch memory of its size.
ffi::Error SumByScratch(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> sum, ffi::ResultBuffer<ffi::F32> scratch) {
  if (scratch->element_count() != x.element_count()) return ffi::Error::InvalidArgument("scratch has another size");
  for (size_t i = 0; i < x.element_count(); ++i) scratch->typed_data()[i] = 2 * x.typed_data()[i];
  sum->typed_data()[0] = 0;
  for (size_t i = 0; i < x.element_count(); ++i) sum->typed_data()[0] += scratch->typed_data()[i] / 2;
  return ffi::Error::Success();
}

// Adds one where its operand lies, if that is where its result does; else says so with -1.
ffi::Error InPlace(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  const bool same = x.typed_data() == y->typed_data();
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = same ? x.typed_data()[i] + 1 : -1;
  return ffi::Error::Success();
}

// The bytes of its operand as they lie.
ffi::Error Flat(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  std::memcpy(y->typed_data(), x.typed_data(), x.size_bytes());
  return ffi::Error::Success();
}

// Fails when its operand is `at`.
ffi::Error FailAt(ffi::Buffer<ffi::S32> x, int64_t at, ffi::ResultBuffer<ffi::S32> y) {
  const int32_t value = x.typed_data()[0];
  y->typed_data()[0] = value + 1;
  return value == at ? token_effects::Error(ffi::ErrorCode::kOutOfRange, "The value is " + std::to_string(value),
                                            "It must be another", "Change it")
                     : ffi::Error::Success();
}

// Fails with this text.
ffi::Error FailWith(ffi::Buffer<ffi::S32>, std::string_view text, ffi::ResultBuffer<ffi::S32>) {
  return ffi::Error(ffi::ErrorCode::kAborted, std::string(text));
}

ffi::Error Throw(ffi::Buffer<ffi::S32> x, ffi::ResultBuffer<ffi::S32>) {
  if (x.typed_data()[0] == 0) throw 7;
  throw std::runtime_error("thrown on purpose");
}

// Prints.
ffi::Error Say(token_effects::Call call, ffi::Buffer<ffi::S32> x, ffi::ResultBuffer<ffi::S32> y) {
  const int32_t value = x.typed_data()[0];
  call.Print("native ", value, " \"", 0.5, "\"");
  y->typed_data()[0] = value;
  return ffi::Error::Success();
}

// Prints a label and its operand's values.
ffi::Error SayLine(token_effects::Call call, std::string_view label, ffi::Buffer<ffi::S32> x) {
  std::string line(label);
  for (size_t i = 0; i < x.element_count(); ++i) line += " " + std::to_string(x.typed_data()[i]);
  call.Print(line);
  return ffi::Error::Success();
}

// Prints, and looks at no operands: these may lie on a GPU.
ffi::Error Announce(token_effects::Call call, std::string_view label, ffi::RemainingArgs, ffi::RemainingRets) {
  call.Print("announced ", label);
  return ffi::Error::Success();
}

// Answers later, from a thread of its own; fails if the operand is negative.
ffi::Future Later(ffi::Buffer<ffi::S32> x, ffi::ResultBuffer<ffi::S32> y) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const int32_t value = x.typed_data()[0];
  int32_t *out = y->typed_data();
  std::thread([promise, value, out]() mutable {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    {
      std::lock_guard lock(mutex);
      seen.push_back(value);
    }
    *out = value + 1;
    if (value < 0)
      promise.SetError(ffi::Error(ffi::ErrorCode::kUnavailable, "nobody answers"));
    else
      promise.SetAvailable();
  }).detach();
  return future;
}

// Along the last axis, the sum of the values times their places, by a modulus; answers later.
ffi::Future Fold(ffi::Buffer<ffi::S32> x, int64_t modulus, ffi::ResultBuffer<ffi::S32> y) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const size_t count = y->element_count(), each = count == 0 ? 0 : x.element_count() / count;
  std::thread([promise, in = x.typed_data(), out = y->typed_data(), count, each, modulus]() mutable {
    for (size_t row = 0; row < count; ++row) {
      int64_t total = 0;
      for (size_t i = 0; i < each; ++i) total += static_cast<int64_t>(i + 1) * in[row * each + i];
      out[row] = static_cast<int32_t>(total % modulus);
    }
    promise.SetAvailable();
  }).detach();
  return future;
}

// Functions of XLA's older signature.
void OldAdd(void *out, const void **in) {
  for (int i = 0; i < 3; ++i)
    static_cast<float *>(out)[i] = static_cast<const float *>(in[0])[i] + static_cast<const float *>(in[1])[i];
}
void OldCount(void *out, const void **) { *static_cast<int32_t *>(out) = 7; }
void OldSwap(void *out, const void **in) {
  void **outs = static_cast<void **>(out);
  std::memcpy(outs[0], in[1], sizeof(int32_t));
  std::memcpy(outs[1], in[0], 3 * sizeof(float));
}
void OldNote(void *, const void **in) {
  std::lock_guard lock(mutex);
  seen.push_back(*static_cast<const int32_t *>(in[0]));
}

} // namespace

using F32 = ffi::Buffer<ffi::F32>;
using S32 = ffi::Buffer<ffi::S32>;

XLA_FFI_DEFINE_HANDLER_SYMBOL(old_add, token_effects::OfC<OldAdd>, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(old_count, token_effects::OfC<OldCount>,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(old_swap, token_effects::OfC<OldSwap>, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(old_note, token_effects::OfC<OldNote>, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(add, Add, ffi::Ffi::Bind().Arg<F32>().Attr<float>("by").Ret<F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(note, Note, ffi::Ffi::Bind().Arg<S32>().Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(note_attribute, NoteAttribute, ffi::Ffi::Bind().Attr<int64_t>("value"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(sizes, Sizes, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(attributes, Attributes, ffi::Ffi::Bind().Attrs().Ret<ffi::Buffer<ffi::U8>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(sum_by_scratch, SumByScratch, ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(in_place, InPlace, ffi::Ffi::Bind().Arg<F32>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(flat, Flat, ffi::Ffi::Bind().Arg<F32>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fail_at, FailAt, ffi::Ffi::Bind().Arg<S32>().Attr<int64_t>("at").Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fail_with, FailWith,
                              ffi::Ffi::Bind().Arg<S32>().Attr<std::string_view>("text").Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(throws, Throw, ffi::Ffi::Bind().Arg<S32>().Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(say, Say, ffi::Ffi::Bind().Ctx<token_effects::Call>().Arg<S32>().Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(say_line, SayLine,
                              ffi::Ffi::Bind().Ctx<token_effects::Call>().Attr<std::string_view>("label").Arg<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    announce, Announce,
    ffi::Ffi::Bind().Ctx<token_effects::Call>().Attr<std::string_view>("label").RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(fold, Fold, ffi::Ffi::Bind().Arg<S32>().Attr<int64_t>("modulus").Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(later, Later, ffi::Ffi::Bind().Arg<S32>().Ret<S32>());


// What the handlers have noted, up to `size` of it; forgets it. Returns how much there was.
extern "C" int64_t take_seen(int32_t *out, int64_t size) {
  std::lock_guard lock(mutex);
  const int64_t count = static_cast<int64_t>(seen.size());
  std::memcpy(out, seen.data(), sizeof(int32_t) * static_cast<size_t>(std::min(count, size)));
  seen.clear();
  return count;
}
