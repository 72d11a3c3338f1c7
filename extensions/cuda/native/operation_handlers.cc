// The handlers that start and end asynchronous operations. Values in flight are on the host, as for CPUs: they are
// copied there at the start, and back at the done. There are no exchanges: in a program for GPUs, collectives are JAX's
// own.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "extensions/asynchronous/native/bindings.h"
#include "extensions/asynchronous/native/bodies.h"
#include "extensions/asynchronous/native/ticket.h"
#include "guard.h"
#include "handlers.h"

namespace effects::cuda {

namespace ffi = xla::ffi;

namespace {

constexpr Said kOperationFailed{
    "An asynchronous operation failed when the device had come to it: ",
    " The program has gone on with zeros in its place, and its effects after that are lost."};

Program ProgramOf(const Span &token) { return effects::ProgramOf(LoadToken(token).token); }

// Calls `body` with copies of all operands and copies its results back: all but the token, which is unchanged. They are
// zeros if it fails.
template <typename Body>
void LaunchAllWithResults(Stream stream, ffi::RemainingArgs args, ffi::RemainingRets rets, Body body) {
  const Driver &found = driver();
  Spans buffers(args, 0);
  const InContextOf context(found, stream);
  LaunchWithResults(found, stream, buffers.data(), buffers.size(), OutsOf(rets),
                    [body = std::move(body)](Span *operands, size_t count, const std::vector<Out> &results) {
                      // A failed program's operations are forgotten, and their numbers may be reused.
                      const bool goes_on = !host_failures().has_failed(ProgramOf(operands[0]));
                      if (goes_on &&
                          host_failures().run(operands, kOperationFailed, [&] { body(operands, count, results); }))
                        return;
                      for (const Out &result : results)
                        if (result.size != 0) std::memset(result.data, 0, result.size);
                    });
}

void StoreTickets(const Out &tickets, uint32_t number) {
  effects::StoreTickets(static_cast<float *>(tickets.data), LanesOf(tickets.size, /*by_lane=*/true), number);
}

// (token, *operands) -> (tickets, token): see BeginHostRun().
ffi::Error Begin(LoadedCudaSite *loaded, ffi::Dictionary, int32_t device, Stream stream, ffi::RemainingArgs args,
                 ffi::RemainingRets rets) {
  return Guard("The asynchronous callback at " + loaded->where + " could not be started.", [&] {
    LaunchAllWithResults(stream, args, rets,
                         [site = loaded->site, device](Span *operands, size_t count, const std::vector<Out> &results) {
                           const DeviceToken token = LoadToken(operands[0]);
                           StoreTickets(results[0], BeginHostRun(*site, device, token, operands + 1, count - 1));
                         });
  });
}

// (token, *values) -> (tickets, token): keeps the values until the operation is done; `by_lane`: per lane. `optional`:
// it may never be done.
ffi::Error Keep(bool by_lane, bool optional, std::string_view name, int32_t device, Stream stream,
                ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return Guard("The values of an asynchronous operation could not be kept.", [&] {
    LaunchAllWithResults(stream, args, rets,
                         [by_lane, optional, name = std::string(name), device](Span *operands, size_t count,
                                                                               const std::vector<Out> &results) {
                           const size_t lanes = LanesOf(results[0].size, by_lane);
                           StoreTickets(results[0], KeepValues(device, LoadToken(operands[0]).token, operands + 1,
                                                               count - 1, lanes, optional, name));
                         });
  });
}

// (token, tickets) -> (*values, token): see TakeResults(). Kept values are available, so it never waits.
ffi::Error Take(bool by_lane, std::string_view where, int32_t device, Stream stream, ffi::RemainingArgs args,
                ffi::RemainingRets rets) {
  return Guard("The asynchronous operation that is done at " + std::string(where) + " could not be done.", [&] {
    LaunchAllWithResults(
        stream, args, rets,
        [by_lane, where = std::string(where), device](Span *operands, size_t, const std::vector<Out> &results) {
          std::string wrong;
          TakeResults(device, LoadToken(operands[0]).token, operands[1], by_lane, where, results,
                      [&wrong](const std::string &error) {
                        if (wrong.empty()) wrong = error;
                      });
          if (!wrong.empty()) throw std::runtime_error(wrong);
        });
  });
}

XLA_FFI_DEFINE_HANDLER(kBegin, Begin,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<LoadedCudaSite>>()
                           .Attrs()
                           .Ctx<DeviceNumber>()
                           .Ctx<ffi::PlatformStream<Stream>>()
                           .RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(kKeep, Keep,
                       BindKeep<DeviceNumber>().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(kTake, Take,
                       BindTake<DeviceNumber>().Ctx<ffi::PlatformStream<Stream>>().RemainingArgs().RemainingRets());

} // namespace

std::vector<Handler> OperationHandlers() {
  const auto pointer = [](auto *handler) { return reinterpret_cast<void *>(handler); };
  return {{kBeginTarget, "execute", pointer(kBegin)},
          {kKeepTarget, "execute", pointer(kKeep)},
          {kTakeTarget, "execute", pointer(kTake)}};
}

} // namespace effects::cuda
