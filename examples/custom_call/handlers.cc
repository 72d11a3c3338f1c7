// Handlers of custom calls, for the CPU. See custom_call.py.
#include <cstdint>

#include "token_effects/custom_call.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
using ResultF32 = ffi::ResultBuffer<ffi::F32>;

// out[i] = a[i % m] + b[i], with the sizes as attributes.
static ffi::Error CyclicAdd(int64_t m, int64_t n, F32 a, F32 b, ResultF32 out) {
  if (m < 1 || static_cast<int64_t>(a.element_count()) != m || static_cast<int64_t>(b.element_count()) != n)
    return token_effects::Error(ffi::ErrorCode::kInvalidArgument, "The sizes of the operands are not `m` and `n`",
                                "The first is added cyclically to the second", "Pass their sizes as `m` and `n`");
  const float *in = a.typed_data();
  for (int64_t i = 0, at = 0; i < n; ++i) {
    out->typed_data()[i] = in[at] + b.typed_data()[i];
    if (++at == m) at = 0;
  }
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(cyclic_add, CyclicAdd,
                              ffi::Ffi::Bind().Attr<int64_t>("m").Attr<int64_t>("n").Arg<F32>().Arg<F32>().Ret<F32>());

// The running mean of three, twice. What the first pass makes is in memory that the caller gives and nobody sees.
static ffi::Error Smooth(F32 x, ResultF32 y, ResultF32 scratch) {
  const int64_t n = static_cast<int64_t>(x.element_count());
  const auto pass = [n](const float *in, float *out) {
    for (int64_t i = 0; i < n; ++i) {
      const float left = in[i == 0 ? 0 : i - 1], right = in[i + 1 == n ? i : i + 1];
      out[i] = (left + in[i] + right) / 3;
    }
  };
  pass(x.typed_data(), scratch->typed_data());
  pass(scratch->typed_data(), y->typed_data());
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(smooth, Smooth, ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ret<F32>());

// The square root, of what has one.
static ffi::Error Root(F32 x, ResultF32 y) {
  float guess = x.typed_data()[0];
  if (guess < 0)
    return token_effects::Error(ffi::ErrorCode::kOutOfRange, "The operand is " + std::to_string(guess),
                                "A square root is taken of what is not negative", "Pass such a number");
  for (int i = 0; i < 60 && guess > 0; ++i) guess = (guess + x.typed_data()[0] / guess) / 2;
  y->typed_data()[0] = guess;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(root, Root, ffi::Ffi::Bind().Arg<F32>().Ret<F32>());

// Halves its operand, and says so from C++, in the order of the program.
static ffi::Error Halve(token_effects::Call call, F32 x, ResultF32 y) {
  y->typed_data()[0] = x.typed_data()[0] / 2;
  call.Print("half of ", x.typed_data()[0], " is ", y->typed_data()[0]);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(halve, Halve, ffi::Ffi::Bind().Ctx<token_effects::Call>().Arg<F32>().Ret<F32>());
