#include "bodies.h"

#include <cstring>
#include <utility>

#include "ticket.h"

namespace effects {

size_t LanesOf(size_t bytes_of_tickets, bool by_lane) {
  return by_lane ? bytes_of_tickets / (kTicketLength * sizeof(float)) : 1;
}

uint32_t BeginHostRun(const LoadedSite &site, int32_t device, const DeviceToken &token, const Span *operands,
                      size_t count) {
  const uint32_t number = operations().start(ProgramOf(token.token), device, site.has(kRecordIsReplicated));
  if (!token.is_primary()) return number;
  site.decide(device, token.token); // never left out, but counted
  std::vector<Span> spans(operands, operands + count);
  spans.push_back({&number, sizeof number});
  const auto flags = static_cast<uint16_t>(site.flags | kAwaited);
  if (ThreadOf(token.token) == kPlainThread) // each effect has an epoch
    PublishPlain(site.site, /*ordered=*/false, device, spans.data(), spans.size(), flags);
  else
    publisher().publish(Kind::kUnordered, site.site, token.token, device, spans.data(), spans.size(), flags);
  // Delivered now, not with the next batch.
  wake_up().set_offer_urgent();
  wake_up().wake_now();
  return number;
}

void NoteStart(int32_t device, const Token &token, uint32_t number, std::string_view name) {
  publisher().note(Kind::kOperation, {token.stream, token.epoch, 0, number}, name, 0, device);
}

uint32_t KeepValues(int32_t device, const Token &token, const Span *values, size_t count, size_t lanes, bool optional,
                    std::string_view name) {
  const uint32_t times = lanes == 0 ? 1 : static_cast<uint32_t>(lanes);
  const uint32_t number = operations().keep(ProgramOf(token), device, values, count, times, optional);
  NoteStart(device, token, number, name);
  return number;
}

void TakeResults(int32_t device, const Token &token, const Span &tickets, bool by_lane, std::string_view where,
                 const std::vector<Out> &outs, const Operations::Done &done) {
  const Program program = ProgramOf(token);
  const auto *ticket = static_cast<const float *>(tickets.data);
  const size_t lanes = LanesOf(tickets.size, by_lane);
  for (size_t lane = 0; lane < lanes; ++lane, ticket += kTicketLength) {
    std::vector<Out> of_lane;
    for (const Out &out : outs) {
      const size_t size = out.size / lanes;
      of_lane.push_back({static_cast<std::byte *>(out.data) + lane * size, size});
    }
    const uint32_t number = LoadTicket(ticket);
    if (number == 0) { // zeros are a future of zeros
      for (const Out &out : of_lane)
        if (out.size != 0) std::memset(out.data, 0, out.size);
      done({});
      continue;
    }
    operations().take(
        program, device, number, by_lane ? LaneOfTicket(ticket) : 0, std::move(of_lane),
        [done, program, device, of = Token{token.stream, token.epoch, 0, number}](const std::string &error) {
          publisher().note(Kind::kOperationDone, of, {}, 0, device);
          if (!error.empty()) operations().fail(program, error);
          done(error);
        },
        where);
  }
}

} // namespace effects
