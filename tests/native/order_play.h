// What the tests of ReleaseOrder share: an order, and the list of what left it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "dispatch/native/order/release_order.h"

namespace effects {

using check::MakeToken;

// A ReleaseOrder and the list of what left it: "thread.epoch.domain.index", "u" before an unordered one, and
// "end thread.epoch". The plain stream is "plain" in place of a thread.
class Play {
public:
  void open(uint32_t thread, uint32_t epoch) { order.open({thread, epoch, 0}, ++dispatch); }
  // What takes a record returns what accept() does: whether anybody will ever want it.
  bool record(uint32_t thread, uint32_t epoch, uint32_t index, uint32_t domain = 0) {
    return accept(Kind::kOrdered, MakeToken(thread, domain, epoch, index));
  }
  bool unordered(uint32_t thread, uint32_t epoch, uint32_t number = 0) {
    return accept(Kind::kUnordered, MakeToken(thread, 0, epoch, number));
  }
  // An unordered one that all devices publish, from this device.
  bool unordered_of_all(uint32_t thread, uint32_t epoch, int32_t device) {
    return accept(Kind::kUnordered, MakeToken(thread, 0, epoch, 0), kReplicated, device);
  }
  // A record with these flags, from this device, that somebody waits for under this number.
  bool record_of(uint32_t thread, uint32_t epoch, uint32_t index, uint16_t flags, int32_t device, uint32_t reply) {
    return accept(Kind::kOrdered, MakeToken(thread, 0, epoch, index), flags, device, reply);
  }
  bool close(uint32_t thread, uint32_t epoch, const std::vector<std::pair<uint32_t, uint32_t>> &finals) {
    std::vector<Token> tokens;
    for (auto &[domain, index] : finals) tokens.push_back(MakeToken(thread, domain, epoch, index));
    RecordHeader header = make(Kind::kClose, tokens.at(0));
    header.payload_size = tokens.size() * sizeof(Token);
    const auto *bytes = reinterpret_cast<const std::byte *>(tokens.data());
    return order.accept(header, {bytes, header.payload_size, nullptr}, [this](auto &&...args) { left(args...); });
  }
  // A plain effect: an epoch that is closed at once.
  void plain(uint32_t epoch, uint32_t reply = 0) {
    open(kPlainThread, epoch);
    CHECK(record_of(kPlainThread, epoch, 0, 0, 0, reply));
    close(kPlainThread, epoch, {{0, 1}});
  }
  void drop(uint32_t thread, uint32_t epoch, uint32_t index, uint64_t count, uint32_t domain = 0) {
    order.accept_drop({MakeToken(thread, domain, epoch, index), count});
  }

  bool advance() {
    const bool again = order.advance([this](auto &&...args) { left(args...); }, finished);
    note_ends();
    return again;
  }
  void advance_to_the_end() {
    while (advance()) {
    }
  }
  void pass(std::chrono::nanoseconds time) { order.set_time(now += time); }
  // What left since the last call.
  std::vector<std::string> take() { return std::exchange(seen, {}); }

  ReleaseOrder order;
  uint64_t dispatch = 0;
  std::vector<std::string> seen;

private:
  // Called before a record is noted too, so that ends stand between the records where they happened.
  void note_ends() {
    for (const Finished &one : finished) seen.push_back("end " + name_of(one.thread) + "." + std::to_string(one.epoch));
    finished.clear();
  }
  std::vector<Finished> finished;
  std::chrono::steady_clock::time_point now;

  static std::string name_of(uint32_t thread) { return thread == kPlainThread ? "plain" : std::to_string(thread); }
  static RecordHeader make(Kind kind, const Token &token) {
    RecordHeader header{};
    header.kind = kind;
    header.token = token;
    return header;
  }
  bool accept(Kind kind, const Token &token, uint16_t flags = 0, int32_t device = 0, uint32_t reply = 0) {
    // The payload repeats the token, so that a parked record that leaves with another's bytes is seen.
    RecordHeader header = make(kind, token);
    header.flags = flags;
    header.device = device;
    header.reply = reply;
    header.payload_size = sizeof token;
    const auto *bytes = reinterpret_cast<const std::byte *>(&token);
    return order.accept(header, {bytes, sizeof token, nullptr}, [this](auto &&...args) { left(args...); });
  }
  void left(const RecordHeader &header, const Payload &payload, const EpochInfo &info) {
    CHECK_EQ(header.payload_size, sizeof(Token));
    CHECK_EQ(payload.size, sizeof(Token));
    CHECK(std::memcmp(payload.data, &header.token, sizeof(Token)) == 0);
    note_ends();
    const Token &token = header.token;
    CHECK_EQ(info.thread, ThreadOf(token));
    const std::string mark = header.kind == Kind::kUnordered ? "u" : "";
    CHECK_EQ(info.epoch, token.epoch);
    const uint32_t domain = DomainOf(token);
    seen.push_back(mark + name_of(info.thread) + "." + std::to_string(token.epoch) + "." + std::to_string(domain) +
                   "." + std::to_string(token.index));
  }
};

inline void CheckAllEnded(Play &play) {
  CHECK_EQ(play.order.open_epochs(), size_t{0});
  CHECK_EQ(play.order.parked_bytes(), size_t{0});
}

inline RecordHeader Header(uint32_t thread, uint32_t epoch, uint32_t index) {
  RecordHeader header{};
  header.kind = Kind::kOrdered;
  header.token = MakeToken(thread, 0, epoch, index);
  return header;
}

} // namespace effects
