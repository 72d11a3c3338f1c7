// A future's only array is its ticket. Two floats hold the operation's number, and a third which of its lanes it is
// for: floats, since the derivative by an integer would vanish. Zeros are a future of zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace effects {

inline constexpr size_t kTicketLength = 3;
// All floats hold their part exactly.
inline constexpr uint32_t kTicketShift = 12;

// A ticket for each of so many lanes. Loops may take them apart, and put tickets of their own together.
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
