// A call of a user's handler that starts an asynchronous operation. XLA takes the call for over when the handler has
// returned, so what the handler may still read or write when it answers later lies here: copies of the operands, and
// memory for the results, which goes to the operation when the handler has answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/native/producer/bytes.h"
#include "extensions/asynchronous/native/operations.h"
#include "xla/ffi/api/ffi.h"

namespace effects {

class StartedCall {
public:
  // Begins the operation, which comes to those of its results that are in `kept`. `frame` has nothing of ours. A result
  // that is an operand's memory stays that.
  StartedCall(const Program &program, int32_t device, uint32_t lanes, const std::vector<int64_t> &kept,
              const XLA_FFI_CallFrame &frame);
  StartedCall(const StartedCall &) = delete;

  uint32_t number() const { return number_; }

  // What the handler gets in place of XLA's buffers.
  void **operands() { return operand_pointers_.data(); }
  void **results() { return result_pointers_.data(); }

  // Any thread, once: the handler has answered, with `error` if it has failed.
  void answer(std::string error);

private:
  struct Array {
    XLA_FFI_Buffer buffer;
    std::vector<int64_t> dims;
    Block memory;
    size_t size;
  };
  void add(std::vector<Array> &arrays, const void *buffer, Block memory, size_t size);
  static std::vector<void *> point_to(std::vector<Array> &arrays);

  const Program program_;
  const int32_t device_;
  const uint32_t number_;
  const std::vector<int64_t> kept_;
  std::vector<Array> operands_, results_;
  std::vector<void *> operand_pointers_, result_pointers_;
};

} // namespace effects
