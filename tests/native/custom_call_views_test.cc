// What a handler still sees of its buffers when it answers later.
#include "extensions/custom_calls/native/custom_call.h"

#include <cstdint>
#include <vector>

#include "check.h"

namespace {

int32_t *DataOf(void *buffer) { return static_cast<int32_t *>(static_cast<XLA_FFI_Buffer *>(buffer)->data); }

// XLA may describe other buffers in the same place when a handler has returned and has not answered yet.
TEST(test_views_of_buffers_outlive_the_call) {
  std::vector<int32_t> given{1, 2, 3}, result{4, 5}, others(3, 9);
  int64_t dims[] = {3, 2};
  XLA_FFI_Buffer operand{sizeof operand, nullptr, XLA_FFI_DataType_S32, given.data(), 1, &dims[0]};
  XLA_FFI_Buffer out{sizeof out, nullptr, XLA_FFI_DataType_S32, result.data(), 1, &dims[1]};
  void *operands[] = {&operand}, *results[] = {&out};
  XLA_FFI_CallFrame frame{};
  frame.args.args = operands;
  frame.rets.rets = results;
  frame.args.size = frame.rets.size = 1;
  effects::BufferViews views;
  views.take(frame);
  operand.data = out.data = others.data();
  CHECK(DataOf(views.operands()[0]) == given.data());
  CHECK(DataOf(views.results()[0]) == result.data());
  views.take(frame); // of the next call
  CHECK(DataOf(views.operands()[0]) == others.data() && DataOf(views.results()[0]) == others.data());
}

} // namespace
