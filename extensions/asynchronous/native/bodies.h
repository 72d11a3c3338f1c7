// What the handlers of asynchronous operations do, wherever their operands lie: see bodies.h, and who calls it.
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

// How many lanes there are, if each has one of these tickets; else the tickets are one operation's.
size_t LanesOf(size_t bytes_of_tickets, bool by_lane);

// (token, *operands): a function of the host's begins at once. The record is without an order, and ends with the number
// of the operation. Returns that.
uint32_t BeginHostRun(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands,
                      size_t count);

// Notes that an operation of this number has started, for who records a run. `name` says what and at which line.
void NoteStart(int32_t device, const Token &token, uint32_t number, std::string_view name);

// (token, *values): keeps the values until the operation is done, for each of so many lanes; without lanes for all.
// Returns its number.
uint32_t KeepValues(int32_t device, const Token &token, const Span *values, size_t count, size_t lanes, bool optional,
                    std::string_view name);

// (token, tickets): what the operations have come to goes to `outs`, which the lanes divide. Calls `done` once for each
// lane, later perhaps, and in another thread then. `where`: the user's line that asks.
void TakeResults(int32_t device, const Token &token, const Span &tickets, bool by_lane, std::string_view where,
                 const std::vector<Out> &outs, const Operations::Done &done);

// The handlers of CPUs.
std::vector<Handler> OperationHandlers();

} // namespace effects
