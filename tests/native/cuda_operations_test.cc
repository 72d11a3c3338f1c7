// Asynchronous operations on a GPU: what is put into the stream, and what comes of it when the stream
// gets there.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cuda_world.h"
#include "dispatch/native/xla/host_failures.h"
#include "dispatch/native/xla/runtime.h"
#include "extensions/asynchronous/native/operations.h"
#include "extensions/asynchronous/native/ticket.h"

namespace effects::cuda_operations_test {
namespace {

// Memory of a device's.
struct Buffer {
  explicit Buffer(Value value) : value(std::move(value)), address(StandIn_Allocate(this->value.bytes.size())) {
    std::memcpy(StandIn_Memory(address), this->value.bytes.data(), this->value.bytes.size());
  }
  std::string bytes() const {
    return std::string(static_cast<const char *>(StandIn_Memory(address)), value.bytes.size());
  }
  const Value value;
  const uint64_t address;
};

Frame &With(Frame &frame, const std::vector<const Buffer *> &operands, const std::vector<const Buffer *> &results) {
  for (const Buffer *each : operands)
    frame.operand(reinterpret_cast<void *>(each->address), each->value.type, each->value.sizes);
  for (const Buffer *each : results)
    frame.result(reinterpret_cast<void *>(each->address), each->value.type, each->value.sizes);
  return frame;
}

void *Execute(const char *target) {
  for (const Handler &one : cuda::handlers())
    if (std::strcmp(one.target, target) == 0 && std::strcmp(one.stage, "execute") == 0) return one.function;
  return nullptr;
}

Value Tickets(int64_t lanes) {
  return {XLA_FFI_DataType_F32, {lanes, 3}, std::string(static_cast<size_t>(lanes) * 3 * sizeof(float), '?')};
}

std::string Keep(Loaded &loaded, const Buffer &token, const Buffer &values, const Buffer &tickets, bool by_lane) {
  Frame frame(loaded);
  return With(frame, {&token, &values}, {&tickets, &token})
      .attributes({{"by_lane", by_lane}, {"optional", false}, {"name", std::string("f at f.py:1")}})
      .call(Execute(kKeepTarget));
}

std::string Take(Loaded &loaded, const Buffer &token, const Buffer &tickets, const Buffer &values, bool by_lane) {
  Frame frame(loaded);
  return With(frame, {&token, &tickets}, {&values, &token})
      .attributes({{"by_lane", by_lane}, {"where", std::string("model.py:9")}})
      .call(Execute(kTakeTarget));
}

// Values pass from the start to the done by the host's memory. Neither call waits for the stream, and nothing is kept
// before the stream has come to it.
TEST(test_values_are_kept) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Loaded loaded{0, device.stream, nullptr};
  for (const bool by_lane : {false, true}) {
    const Buffer token(ValueOf(device.token)), values(Ints({1, 2, 3, 4})), tickets(Tickets(by_lane ? 2 : 1)),
        got(Ints({0, 0, 0, 0}));
    StandIn_Hold(device.stream);
    CHECK(Keep(loaded, token, values, tickets, by_lane).empty());
    CHECK(Take(loaded, token, tickets, got, by_lane).empty());
    CHECK(!operations().any());
    CHECK(got.bytes() == Ints({0, 0, 0, 0}).bytes);
    StandIn_LetGo(device.stream);
    device.synchronize();
    CHECK(got.bytes() == values.value.bytes);
    CHECK(token.bytes() == token.value.bytes);
    operations().end({1, device.token.token.epoch});
  }
  CHECK_EQ(Play({[&] { CHECK(device.close().empty()); }}, 1).size(), size_t{0});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Zeros are a future of zeros. A ticket that was never given fails its program, once, and gives zeros.
TEST(test_unknown_tickets_fail_their_program) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Loaded loaded{0, device.stream, nullptr};
  const Buffer token(ValueOf(device.token)), got(Ints({7, 7}));
  Value ticket = Tickets(1);
  StoreTickets(reinterpret_cast<float *>(ticket.bytes.data()), 1, 0);
  CHECK(Take(loaded, token, Buffer(ticket), got, false).empty());
  device.synchronize();
  CHECK(got.bytes() == Ints({0, 0}).bytes);
  CHECK(host_failures().take().empty());
  StoreTickets(reinterpret_cast<float *>(ticket.bytes.data()), 1, 41);
  const Buffer unknown(ticket), other(Ints({7, 7}));
  for (int i = 0; i < 2; ++i) CHECK(Take(loaded, token, unknown, other, false).empty());
  device.synchronize();
  CHECK(other.bytes() == Ints({0, 0}).bytes);
  const std::vector<HostFailure> failures = host_failures().take();
  CHECK_EQ(failures.size(), size_t{1});
  CHECK_EQ(failures[0].thread, uint32_t{1});
  CHECK(failures[0].text.find("An asynchronous operation failed when the device had come to it: The operation that is "
                              "done at model.py:9 was not started") == 0);
  CHECK_EQ(Play({}, 1).size(), size_t{0}); // the program has ended
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// A program that has failed goes on on its device, with zeros: no operation of it gets the values of another.
TEST(test_failed_programs_get_zeros) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Loaded loaded{0, device.stream, nullptr};
  const Buffer token(ValueOf(device.token)), first(Ints({1, 2})), second(Ints({3, 4}));
  const Buffer tickets(Tickets(1)), later(Tickets(1)), got(Ints({7, 7}));
  CHECK(Keep(loaded, token, first, tickets, false).empty());
  device.synchronize();
  Value unknown = Tickets(1);
  StoreTickets(reinterpret_cast<float *>(unknown.bytes.data()), 1, 41);
  CHECK(Take(loaded, token, Buffer(unknown), Buffer(Ints({0, 0})), false).empty());
  device.synchronize();
  operations().end({1, device.token.token.epoch}); // as the drain has it when the program ends
  CHECK(Keep(loaded, token, second, later, false).empty());
  CHECK(Take(loaded, token, tickets, got, false).empty());
  device.synchronize();
  CHECK(got.bytes() == Ints({0, 0}).bytes);
  CHECK(!operations().any());
  CHECK_EQ(host_failures().take().size(), size_t{1});
  CHECK_EQ(Play({}, 1).size(), size_t{0});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// Whatever the driver fails at, the handler says so, and nothing of the launch is used again.
TEST(test_errors_of_launches_with_results) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Loaded loaded{0, device.stream, nullptr};
  const Buffer token(ValueOf(device.token)), values(Ints({1, 2})), tickets(Tickets(1)), got(Ints({0, 0}));
  for (const auto &[function, skipped] : std::vector<std::pair<const char *, int>>{{"cuStreamGetCtx", 0},
                                                                                   {"cuMemHostAlloc", 0},
                                                                                   {"cuMemcpyDtoHAsync_v2", 1},
                                                                                   {"cuLaunchHostFunc", 0},
                                                                                   {"cuMemcpyHtoDAsync_v2", 0},
                                                                                   {"cuLaunchHostFunc", 1}}) {
    StandIn_FailCall(function, skipped, 700);
    const std::string error = Keep(loaded, token, values, tickets, false);
    CHECK(error.find("The values of an asynchronous operation could not be kept. The driver's function `" +
                     std::string(function) + "` failed with CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    CHECK_EQ(StandIn_Contexts(), 0);
  }
  CHECK(Keep(loaded, token, values, tickets, false).empty());
  CHECK(Take(loaded, token, tickets, got, false).empty());
  device.synchronize();
  CHECK(got.bytes() == values.value.bytes);
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

// A function of the host's begins from a record, which ends with the number that the ticket has.
TEST(test_functions_of_the_host_begin) {
  OnDevice device(On::kCudaWithoutKernel, 1, drain().open(1, 0));
  Loaded loaded{0, device.stream, nullptr};
  cuda::LoadedCudaSite site{std::make_shared<const LoadedSite>(SiteAttributes{11, 0, kDescription}), "model.py:7", ""};
  loaded.state = &site;
  const Buffer token(ValueOf(device.token)), operand(Ints({5})), tickets(Tickets(1));
  StandIn_Hold(device.stream);
  Frame frame(loaded);
  CHECK(With(frame, {&token, &operand}, {&tickets, &token}).call(Execute(kBeginTarget)).empty());
  CHECK_EQ(publisher().count_published().records, uint64_t{0});
  StandIn_LetGo(device.stream);
  device.synchronize();
  CHECK_EQ(LoadTicket(reinterpret_cast<const float *>(tickets.bytes().data())), uint32_t{1});
  const std::vector<std::string> seen = Play({[&] { CHECK(device.close().empty()); }}, 1);
  CHECK_EQ(seen.size(), size_t{1});
  CHECK(seen[0].find("site 11 kind " + std::to_string(static_cast<int>(Kind::kUnordered))) == 0);
  operations().end({1, device.token.token.epoch});
  CHECK_SEEN({StandIn_Complaints()}, {""});
}

} // namespace
} // namespace effects::cuda_operations_test
