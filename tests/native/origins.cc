// The handlers of XLA's page on custom calls, for tests/docs/test_origins.py.
#include <cstdint>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

enum class Command : int32_t { kAdd = 0, kMul = 1 };

struct Range {
  int64_t lo, hi;
};

XLA_FFI_REGISTER_ENUM_ATTR_DECODING(Command);
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(Range, ffi::StructMember<int64_t>("lo"), ffi::StructMember<int64_t>("hi"));

namespace {

using Vector = ffi::BufferR1<ffi::F32>;
using Numbers = ffi::BufferR1<ffi::S32>;

// A[i] = B[i % 128] + C[i], where 128 is whatever size B has.
ffi::Error Wrap(Vector b, Vector c, ffi::Result<Vector> a) {
  const int64_t inner = b.dimensions()[0], size = c.dimensions()[0];
  if (a->dimensions()[0] != size) return ffi::Error::InvalidArgument("unexpected dimensions");
  for (int64_t i = 0; i < size; ++i) a->typed_data()[i] = b.typed_data()[i % inner] + c.typed_data()[i];
  return ffi::Error::Success();
}

// Says how many operands and results it has beside the first ones.
ffi::Error Rest(ffi::AnyBuffer, ffi::RemainingArgs args, ffi::Result<Numbers> counts, ffi::RemainingRets rets) {
  counts->typed_data()[0] = static_cast<int32_t>(args.size());
  counts->typed_data()[1] = static_cast<int32_t>(rets.size());
  return ffi::Error::Success();
}

// An integer, and the length of a text.
ffi::Error Attributes(ffi::BufferR0<ffi::F32>, int32_t i32, std::string_view str, ffi::Result<Numbers> out) {
  out->typed_data()[0] = i32;
  out->typed_data()[1] = static_cast<int32_t>(str.size());
  return ffi::Error::Success();
}

ffi::Error Calculate(Command command, ffi::BufferR0<ffi::F32> x, ffi::Result<ffi::BufferR0<ffi::F32>> y) {
  const float value = x.typed_data()[0];
  y->typed_data()[0] = command == Command::kAdd ? value + value : value * value;
  return ffi::Error::Success();
}

ffi::Error FromRange(Range range, ffi::Result<Numbers> out) {
  out->typed_data()[0] = static_cast<int32_t>(range.lo);
  out->typed_data()[1] = static_cast<int32_t>(range.hi);
  return ffi::Error::Success();
}

ffi::Error FromDictionary(ffi::Dictionary attributes, ffi::Result<Numbers> out) {
  const ffi::ErrorOr<Range> range = attributes.get<Range>("range");
  return range.has_value() ? FromRange(*range, out) : range.error();
}

} // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(wrap, Wrap, ffi::Ffi::Bind().Arg<Vector>().Arg<Vector>().Ret<Vector>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(rest, Rest,
                              ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().RemainingArgs().Ret<Numbers>().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    attributes, Attributes,
    ffi::Ffi::Bind().Arg<ffi::BufferR0<ffi::F32>>().Attr<int32_t>("i32").Attr<std::string_view>("str").Ret<Numbers>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    calculate, Calculate,
    ffi::Ffi::Bind().Attr<Command>("command").Arg<ffi::BufferR0<ffi::F32>>().Ret<ffi::BufferR0<ffi::F32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(from_range, FromRange, ffi::Ffi::Bind().Attr<Range>("range").Ret<Numbers>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(from_dictionary, FromDictionary, ffi::Ffi::Bind().Attrs().Ret<Numbers>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(always_error, ([] { return ffi::Error(ffi::ErrorCode::kInternal, "Oops!"); }),
                              ffi::Ffi::Bind());
XLA_FFI_DEFINE_HANDLER_SYMBOL(always_success, ([] { return ffi::Error::Success(); }), ffi::Ffi::Bind());
