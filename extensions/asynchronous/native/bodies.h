// The bodies of asynchronous operations' handlers, for all platforms: see xla/bodies.h, also for the calling threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "dispatch/native/producer/bytes.h"
#include "dispatch/native/producer/device_token.h"
#include "dispatch/native/xla/handlers.h"
#include "operations.h"

namespace effects {

// The number of lanes, if each has one of these tickets; 0 if all tickets are one operation's.
size_t LanesOf(size_t bytes_of_tickets, bool by_lane);

// (token, *operands): starts a host function at once. Its unordered record ends with the operation's number, which is
// returned.
uint32_t BeginHostRun(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands,
                      size_t count);

// Notes in a run file that an operation of this number has started. `name`: its kind and line.
void NoteStart(int32_t device, const Token &token, uint32_t number, std::string_view name);

// (token, *values): keeps the values until the operation is done, per lane if there are `lanes`. Returns the
// operation's number.
uint32_t KeepValues(int32_t device, const Token &token, const Span *values, size_t count, size_t lanes, bool optional,
                    std::string_view name);

// (token, tickets): copies the operations' results to `outs`, which the lanes divide. Calls `done` once per lane,
// perhaps later and in another thread. `where`: the user's line of the done.
void TakeResults(int32_t device, const Token &token, const Span &tickets, bool by_lane, std::string_view where,
                 const std::vector<Out> &outs, const Operations::Done &done);

// The handlers of CPUs.
std::vector<Handler> OperationHandlers();

} // namespace effects
