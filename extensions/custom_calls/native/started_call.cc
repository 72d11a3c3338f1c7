#include "started_call.h"

#include <cstring>
#include <utility>

#include "dispatch/native/xla/runtime.h"

namespace effects {
namespace {

const XLA_FFI_Buffer &BufferOf(const void *buffer) { return *static_cast<const XLA_FFI_Buffer *>(buffer); }

size_t SizeOf(const void *buffer) { return xla::ffi::AnyBuffer(&BufferOf(buffer)).size_bytes(); }

} // namespace

StartedCall::StartedCall(const Program &program, int32_t device, uint32_t lanes, const std::vector<int64_t> &kept,
                         const XLA_FFI_CallFrame &frame)
    : program_(program), device_(device), number_(operations().expect(program, device, lanes)), kept_(kept) {
  for (int64_t i = 0; i < frame.args.size; ++i) {
    const size_t size = SizeOf(frame.args.args[i]);
    Block memory = AllocateBlock(size);
    if (size != 0) std::memcpy(memory.get(), BufferOf(frame.args.args[i]).data, size);
    add(operands_, frame.args.args[i], std::move(memory), size);
  }
  for (int64_t i = 0; i < frame.rets.size; ++i) {
    const size_t size = SizeOf(frame.rets.rets[i]);
    const void *const data = BufferOf(frame.rets.rets[i]).data;
    Block memory;
    for (int64_t j = 0; j < frame.args.size && memory == nullptr && size != 0; ++j)
      if (BufferOf(frame.args.args[j]).data == data) memory = std::move(operands_[j].memory);
    add(results_, frame.rets.rets[i], memory == nullptr ? AllocateBlock(size) : std::move(memory), size);
  }
  operand_pointers_ = point_to(operands_);
  result_pointers_ = point_to(results_);
}

void StartedCall::add(std::vector<Array> &arrays, const void *buffer, Block memory, size_t size) {
  const XLA_FFI_Buffer &like = BufferOf(buffer);
  Array array{like, {like.dims, like.dims + like.rank}, std::move(memory), size};
  array.buffer.data = array.memory.get();
  arrays.push_back(std::move(array));
}

std::vector<void *> StartedCall::point_to(std::vector<Array> &arrays) {
  std::vector<void *> pointers;
  for (Array &array : arrays) {
    array.buffer.dims = array.dims.data();
    pointers.push_back(&array.buffer);
  }
  return pointers;
}

void StartedCall::answer(std::string error) {
  std::vector<Bytes> values;
  for (const int64_t at : kept_) values.emplace_back(std::move(results_[at].memory), results_[at].size);
  operations().answer(program_, device_, number_, std::move(values), std::move(error));
}

} // namespace effects
