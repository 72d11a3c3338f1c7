// A future's only array is its ticket, two floats that hold the operation's number: a float, since the derivative of an
// integer would vanish. Zeros are a future of zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace effects {

inline constexpr size_t kTicketLength = 2;
// Both floats hold their part exactly.
inline constexpr uint32_t kTicketShift = 12;

// The same ticket for each of so many lanes.
inline void StoreTickets(float *at, size_t lanes, uint32_t number) {
  for (size_t left = lanes; left != 0; --left) {
    *at++ = static_cast<float>(number >> kTicketShift);
    *at++ = static_cast<float>(number & ((1u << kTicketShift) - 1));
  }
}

inline uint32_t LoadTicket(const float *ticket) {
  return (static_cast<uint32_t>(ticket[0]) << kTicketShift) | static_cast<uint32_t>(ticket[1]);
}

} // namespace effects
