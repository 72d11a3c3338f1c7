// A future's only array is its ticket. Two floats hold the operation's number, and a third its lane: floats, since
// integers have no cotangents. Zeros are a future of zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace effects {

inline constexpr size_t kTicketLength = 3;
// Each float represents its part exactly.
inline constexpr uint32_t kTicketShift = 12;

// A ticket for each of `lanes` lanes. Loops may split and stack tickets.
inline void StoreTickets(float *at, size_t lanes, uint32_t number) {
  for (size_t lane = 0; lane < lanes; ++lane) {
    *at++ = static_cast<float>(number >> kTicketShift);
    *at++ = static_cast<float>(number & ((1u << kTicketShift) - 1));
    *at++ = static_cast<float>(lane);
  }
}

inline uint32_t LoadTicket(const float *ticket) {
  return (static_cast<uint32_t>(ticket[0]) << kTicketShift) | static_cast<uint32_t>(ticket[1]);
}

inline uint32_t LaneOfTicket(const float *ticket) { return static_cast<uint32_t>(ticket[2]); }

} // namespace effects
