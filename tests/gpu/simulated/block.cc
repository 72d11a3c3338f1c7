#include "block.h"

#include <cstring>

#include "ptx.h"

namespace simulated {

// What threads of a warp do together. Returns false if the others have not come yet.
bool Block::exchange(Thread &thread, const Instruction &now) {
  const auto plain = [&](size_t i) { return static_cast<uint32_t>(bits(thread, now.operands.at(i))); };
  const uint32_t lane = thread.properties[kLane];
  const auto result = [&](size_t i, uint64_t value) {
    if (i < now.to.size()) write(thread, now.to[i], value);
  };
  if (now.name == "shfl"_w) {
    if (!gives(thread, plain(0), plain(3))) return false;
    const uint32_t by = plain(1) & 31, clamp = plain(2) & 31, segment = plain(2) >> 8 & 31;
    const uint32_t last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    uint32_t from = now.has("up"_w)     ? lane - by
                    : now.has("down"_w) ? lane + by
                    : now.has("bfly"_w) ? lane ^ by
                                        : first | (by & ~segment);
    const bool is_there = now.has("up"_w) ? static_cast<int32_t>(from) >= static_cast<int32_t>(last) : from <= last;
    if (!is_there) from = lane;
    result(0, given(thread, from));
    result(1, is_there);
    return true;
  }
  const bool is_vote = now.name == "vote"_w;
  const uint32_t mask = now.operands.size() > 1 ? plain(1) : plain(0);
  if (!gives(thread, is_vote ? plain(0) & 1 : plain(0), mask)) return false;
  uint64_t all = 0;
  bool is_first = true;
  for (uint32_t other = 0; other < kWarpSize; ++other) {
    if ((mask >> other & 1) == 0) continue;
    const uint64_t value = given(thread, other);
    const bool less = now.type.kind == 's' ? static_cast<int32_t>(value) < static_cast<int32_t>(all) : value < all;
    if (is_vote)
      all |= value << other;
    else if (is_first)
      all = value;
    else
      all = now.has("add"_w)   ? all + value
            : now.has("and"_w) ? all & value
            : now.has("or"_w)  ? all | value
            : now.has("xor"_w) ? all ^ value
                               : (less == now.has("min"_w) ? value : all);
    is_first = false;
  }
  if (is_vote && !now.has("ballot"_w)) all = now.has("any"_w) ? all != 0 : all == mask;
  result(0, all);
  return true;
}

// Runs one instruction. Returns false if the thread has to wait for others, or is over.
bool Block::step(Thread &thread) {
  if (thread.at >= kernel_.code.size()) {
    thread.is_over = true;
    return false;
  }
  const Instruction &now = kernel_.code[thread.at];
  if (now.guard >= 0 && (thread.registers[static_cast<size_t>(now.guard)] != 0) == now.guard_is_false) {
    ++thread.at;
    return true;
  }
  const uint64_t name = now.name;
  if (name == "bra"_w) {
    thread.at = now.target;
    return true;
  }
  if (name == "ret"_w || name == "exit"_w) {
    thread.is_over = true;
    return false;
  }
  const size_t size = now.type.bytes;
  if (name == "ld"_w || name == "ldu"_w) {
    const std::byte *from = place(thread, now, now.operands[0], size * now.to.size());
    for (const Operand &to : now.to) {
      uint64_t value = 0;
      std::memcpy(&value, from, size);
      write(thread, to, Extend(value, now.type));
      from += size;
    }
  } else if (name == "st"_w) {
    std::byte *to = place(thread, now, now.operands[0], size * (now.operands.size() - 1));
    for (size_t i = 1; i < now.operands.size(); ++i, to += size) {
      const uint64_t value = bits(thread, now.operands[i]);
      std::memcpy(to, &value, size);
    }
  } else if (name == "atom"_w || name == "red"_w) {
    std::byte *const at = place(thread, now, now.operands[0], size);
    uint64_t old = 0;
    std::memcpy(&old, at, size);
    old = Extend(old, now.type);
    const uint64_t given = whole(thread, now.operands[1], now.type);
    const bool less = now.type.kind == 's' ? static_cast<int64_t>(given) < static_cast<int64_t>(old) : given < old;
    uint64_t made = given; // "exch"
    if (now.has("cas"_w))
      made = old == given ? whole(thread, now.operands[2], now.type) : old;
    else if (now.has("add"_w))
      made = now.type.is_float() ? BitsOf(FloatOf(old, now.type) + FloatOf(given, now.type), now.type) : old + given;
    else if (now.has("min"_w) || now.has("max"_w))
      made = less == now.has("min"_w) ? given : old;
    else if (now.has("and"_w) || now.has("or"_w) || now.has("xor"_w))
      made = now.has("and"_w) ? old & given : now.has("or"_w) ? old | given : old ^ given;
    else if (!now.has("exch"_w))
      Unknown(now.text);
    std::memcpy(at, &made, size);
    if (!now.to.empty()) write(thread, now.to[0], old);
  } else if (name == "bar"_w || name == "barrier"_w) {
    if (!waits_.count(&thread)) {
      ++thread.met_block;
      waits_.insert(&thread);
    }
    if (!is_met_by_all(thread)) return false;
    waits_.erase(&thread);
  } else if (name == "shfl"_w || name == "vote"_w || name == "redux"_w) {
    if (!exchange(thread, now)) return false;
  } else if (name == "mov"_w && now.to.size() > 1) {
    const unsigned each = now.type.bytes / static_cast<unsigned>(now.to.size());
    for (size_t i = 0; i < now.to.size(); ++i)
      write(thread, now.to[i], bits(thread, now.operands[0]) >> (8 * each * i) & Mask(each));
  } else if (name == "call"_w) { // the function that sets a condition
    Condition *condition;
    unsigned value;
    std::memcpy(&condition, place(thread, now, now.operands.at(0), sizeof condition), sizeof condition);
    std::memcpy(&value, place(thread, now, now.operands.at(1), sizeof value), sizeof value);
    condition->value = value;
  } else if (name == "activemask"_w) {
    write(thread, now.to[0], 0xffffffff);
  } else if (name != "membar"_w && name != "fence"_w && name != "nanosleep"_w && name != "griddepcontrol"_w) {
    const std::optional<uint64_t> value = compute(thread, now);
    if (!value) Unknown(now.text);
    write(thread, now.to[0], *value);
    if (now.to.size() > 1) write(thread, now.to[1], !*value); // of `setp`
  }
  ++thread.at;
  return true;
}

const std::vector<size_t> &ParametersOf(const Kernel &kernel) { return kernel.parameters; }

void Run(const Kernel &kernel, Dim grid, Dim block, const std::vector<std::vector<std::byte>> &parameters,
         size_t shared) {
  for (uint32_t z = 0; z < grid.z; ++z)
    for (uint32_t y = 0; y < grid.y; ++y)
      for (uint32_t x = 0; x < grid.x; ++x) Block(kernel, parameters, grid, {x, y, z}, block, shared).run();
}

} // namespace simulated
