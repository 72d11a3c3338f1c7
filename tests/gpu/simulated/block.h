// Threads of one block, which run a kernel one after the other, each as far as it can without the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "kernel.h"
#include "machine.h"
#include "numbers.h"

namespace simulated {

constexpr unsigned kWarpSize = 32;

struct Thread {
  size_t at = 0; // its next instruction
  std::vector<uint64_t> registers;
  std::vector<std::byte> local;
  uint32_t properties[kNumProperties] = {};
  bool carry = false, is_over = false;
  // How often it has met the other threads of its block and of its warp.
  size_t met_block = 0, met_warp = 0;
};

class Block {
public:
  Block(const Kernel &kernel, const std::vector<std::vector<std::byte>> &parameters, Dim grid, Dim index, Dim size,
        size_t shared)
      : kernel_(kernel), parameters_(parameters), shared_(kernel.shared + shared),
        threads_(size_t{size.x} * size.y * size.z), slots_((threads_.size() + kWarpSize - 1) / kWarpSize) {
    for (uint32_t i = 0; i < threads_.size(); ++i) {
      const uint32_t properties[] = {i % size.x,
                                     i / size.x % size.y,
                                     i / size.x / size.y,
                                     size.x,
                                     size.y,
                                     size.z,
                                     index.x,
                                     index.y,
                                     index.z,
                                     grid.x,
                                     grid.y,
                                     grid.z,
                                     i % kWarpSize,
                                     i / kWarpSize};
      std::copy(std::begin(properties), std::end(properties), threads_[i].properties);
      threads_[i].registers.resize(kernel.registers.size());
      threads_[i].local.resize(kernel.local);
    }
  }

  void run() {
    for (bool any = true; any;) {
      any = false;
      for (Thread &thread : threads_)
        if (!thread.is_over) {
          any = true;
          while (step(thread)) {
          }
        }
    }
  }

private:
  uint64_t bits(const Thread &thread, const Operand &operand) const {
    switch (operand.kind) {
    case Operand::kRegister: {
      const uint64_t value = thread.registers[operand.index];
      return operand.negated ? !value : value + operand.number;
    }
    case Operand::kProperty:
      return thread.properties[operand.index];
    case Operand::kLocalAddress:
      return reinterpret_cast<Address>(thread.local.data()) + operand.number;
    case Operand::kParameterAddress:
      return reinterpret_cast<Address>(parameters_[operand.index].data()) + operand.number;
    default:
      return operand.number;
    }
  }
  uint64_t whole(const Thread &thread, const Operand &operand, const Type &type) const {
    return Extend(bits(thread, operand), type);
  }
  double real(const Thread &thread, const Operand &operand, const Type &type) const {
    return FloatOf(bits(thread, operand), type);
  }
  void write(Thread &thread, const Operand &to, uint64_t value) const {
    if (to.kind == Operand::kRegister)
      thread.registers[to.index] = kernel_.registers[to.index] == 1 ? value : value & Mask(kernel_.registers[to.index]);
  }

  std::byte *place(Thread &thread, const Instruction &now, const Operand &operand, size_t size) {
    Address address = bits(thread, operand);
    if (now.space == Space::kShared) {
      address &= 0xffffffff;
      if (address + size > shared_.size()) Fail("A kernel reaches beyond its shared memory.");
      return shared_.data() + address;
    }
    const auto is_in = [&](const std::vector<std::byte> &own) {
      const auto first = reinterpret_cast<Address>(own.data());
      return address >= first && address + size <= first + own.size();
    };
    const bool is_own = is_in(thread.local) || is_in(shared_) ||
                        (now.space == Space::kParameter && std::any_of(parameters_.begin(), parameters_.end(), is_in));
    return static_cast<std::byte *>(is_own ? reinterpret_cast<void *>(address) : memory().real(address, size));
  }

  // Whether all threads have come to the barrier at which this one is.
  bool is_met_by_all(const Thread &thread) const {
    return std::all_of(threads_.begin(), threads_.end(),
                       [&](const Thread &other) { return other.is_over || other.met_block >= thread.met_block; });
  }

  // What threads of a warp give each other. A thread that has given goes on when all have.
  struct Slots {
    uint64_t values[2][kWarpSize] = {};
  };
  bool gives(Thread &thread, uint64_t value, uint32_t mask) {
    Slots &slots = slots_[thread.properties[kWarp]];
    if (!waits_.count(&thread)) {
      slots.values[thread.met_warp % 2][thread.properties[kLane]] = value;
      ++thread.met_warp;
      waits_.insert(&thread);
    }
    const size_t first = size_t{thread.properties[kWarp]} * kWarpSize;
    for (size_t lane = 0; lane < kWarpSize && first + lane < threads_.size(); ++lane) {
      const Thread &other = threads_[first + lane];
      if ((mask >> lane & 1) != 0 && !other.is_over && other.met_warp < thread.met_warp) return false;
    }
    waits_.erase(&thread);
    return true;
  }
  uint64_t given(const Thread &thread, uint32_t lane) const {
    return slots_[thread.properties[kWarp]].values[(thread.met_warp - 1) % 2][lane % kWarpSize];
  }

  bool step(Thread &thread);
  bool compare(const Thread &thread, const Instruction &now) const;
  uint64_t convert(const Thread &thread, const Instruction &now) const;
  double compute_real(const Thread &thread, const Instruction &now, const Type &type, unsigned shift) const;
  std::optional<uint64_t> compute(Thread &thread, const Instruction &now) const;
  bool exchange(Thread &thread, const Instruction &now);

  const Kernel &kernel_;
  const std::vector<std::vector<std::byte>> &parameters_;
  std::vector<std::byte> shared_;
  std::vector<Thread> threads_;
  std::vector<Slots> slots_;
  std::set<const Thread *> waits_; // for the others of their warps
};

} // namespace simulated
