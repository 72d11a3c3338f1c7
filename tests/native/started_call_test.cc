// A call that starts an asynchronous operation: what the handler gets is its own, and what it gives is the operation's.
// And what a handler that is not started still sees when it answers later.
#include "extensions/custom_calls/native/custom_call.h"
#include "extensions/custom_calls/native/started_call.h"

#include <cstdint>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "dispatch/native/xla/runtime.h"

namespace effects::started_call_test {
namespace {

constexpr Program kProgram{77, 3};

// Buffers of XLA's, of int32, and the frame of a call with them.
struct Call {
  std::vector<std::vector<int32_t>> memory;
  std::vector<int64_t> dims;
  std::vector<XLA_FFI_Buffer> buffers;
  std::vector<void *> operands, results;
  XLA_FFI_CallFrame frame{};

  // The last `shared` results are the memory of the first operands.
  Call(std::vector<std::vector<int32_t>> values, size_t count, size_t shared) : memory(std::move(values)) {
    for (const auto &each : memory) dims.push_back(static_cast<int64_t>(each.size()));
    for (size_t i = 0; i < memory.size(); ++i)
      buffers.push_back({sizeof(XLA_FFI_Buffer), nullptr, XLA_FFI_DataType_S32, memory[i].data(), 1, &dims[i]});
    for (size_t i = 0; i < memory.size(); ++i) (i < count ? operands : results).push_back(&buffers[i]);
    for (size_t i = 0; i < shared; ++i) results.push_back(&buffers[i]);
    frame.args.args = operands.data();
    frame.args.size = static_cast<int64_t>(operands.size());
    frame.rets.rets = results.data();
    frame.rets.size = static_cast<int64_t>(results.size());
  }
};

int32_t *DataOf(void *buffer) { return static_cast<int32_t *>(static_cast<XLA_FFI_Buffer *>(buffer)->data); }

// What an operation comes to, once it has.
std::pair<std::vector<int32_t>, std::string> Taken(uint32_t number, size_t size) {
  std::vector<int32_t> values(size, -1);
  std::promise<std::string> error;
  operations().take(kProgram, 0, number, 0, {{values.data(), size * sizeof(int32_t)}},
                    [&](const std::string &text) { error.set_value(text); });
  std::string text = error.get_future().get();
  return {values, text};
}

// XLA may describe other buffers in the same place when a handler has returned that is not started, and answers later.
TEST(test_views_of_buffers_outlive_the_call) {
  Call call({{1, 2, 3}, {4, 5}}, 1, 0);
  BufferViews views;
  views.take(call.frame);
  std::vector<int32_t> others(3, 9);
  for (XLA_FFI_Buffer &buffer : call.buffers) buffer.data = others.data();
  CHECK(DataOf(views.operands()[0]) == call.memory[0].data());
  CHECK(DataOf(views.results()[0]) == call.memory[1].data());
  views.take(call.frame); // of the next call
  CHECK(DataOf(views.operands()[0]) == others.data() && DataOf(views.results()[0]) == others.data());
}

// XLA may use its buffers for other things when the handler has returned and has not answered yet.
TEST(test_handler_has_memory_of_its_own) {
  Call call({{1, 2, 3}, {0, 0}, {0}}, 1, 0);
  StartedCall started(kProgram, 0, 1, {1, 0}, call.frame);
  call.memory = {{9, 9, 9}, {8, 8}, {7}};
  CHECK(DataOf(started.operands()[0])[0] == 1 && DataOf(started.operands()[0])[2] == 3);
  std::thread handler([&] {
    DataOf(started.results()[0])[0] = DataOf(started.results()[0])[1] = 5;
    DataOf(started.results()[1])[0] = DataOf(started.operands()[0])[1];
    started.answer({});
  });
  std::vector<int32_t> first(1), second(2);
  std::promise<std::string> error;
  operations().take(kProgram, 0, started.number(), 0, {{first.data(), 4}, {second.data(), 8}},
                    [&](const std::string &text) { error.set_value(text); });
  CHECK(error.get_future().get().empty());
  CHECK((first == std::vector<int32_t>{2} && second == std::vector<int32_t>{5, 5}));
  handler.join();
  CHECK((call.memory[1] == std::vector<int32_t>{8, 8}));
  CHECK(operations().end(kProgram) == 0);
}

// A result that XLA has put where an operand lies is where the copy of that operand lies.
TEST(test_result_in_the_place_of_an_operand_stays_there) {
  Call call({{1, 2}, {5}, {0}}, 2, 1);
  StartedCall started(kProgram, 0, 1, {1}, call.frame);
  int32_t *const operand = DataOf(started.operands()[0]);
  CHECK(operand == DataOf(started.results()[1]) && operand != call.memory[0].data());
  CHECK(DataOf(started.results()[0]) != DataOf(started.operands()[1]));
  operand[0] = 4;
  started.answer({});
  const auto [values, error] = Taken(started.number(), 2);
  CHECK(error.empty() && (values == std::vector<int32_t>{4, 2}));
  CHECK(operations().end(kProgram) == 0);
}

TEST(test_handler_that_fails) {
  Call call({{1}, {0}}, 1, 0);
  StartedCall started(kProgram, 0, 1, {0}, call.frame);
  started.answer("no");
  CHECK(Taken(started.number(), 1).second == "no");
  operations().end(kProgram);
}

} // namespace
} // namespace effects::started_call_test
