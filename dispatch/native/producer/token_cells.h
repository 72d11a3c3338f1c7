// Cells of placed tokens, which stay on devices from program to program. The host never writes to such a token. In
// place of stream and epoch it has the number of a cell in host memory, which holds those of the token's current
// program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "../wire.h"

namespace effects {

class TokenCells {
public:
  // A free cell; 0 if there is none.
  uint32_t add() {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const uint32_t cell = free_.back();
      free_.pop_back();
      return cell;
    }
    if (num_cells_ == kChunks * kChunk) return 0;
    std::atomic<Chunk *> &chunk = chunks_[num_cells_ / kChunk];
    // Release: readers find the cell zeroed.
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk, std::memory_order_release);
    return num_cells_++;
  }

  // Frees a cell: its token is gone, and no device will read the cell.
  void release(uint32_t cell) {
    std::lock_guard lock(mutex_);
    free_.push_back(cell);
  }

  // Called before the token's program is launched. Relaxed, as the load is: the launch orders the two.
  void set(uint32_t cell, uint32_t thread, uint32_t epoch) {
    find(cell)->store(uint64_t{thread} << 32 | epoch, std::memory_order_relaxed);
  }

  // Replaces the cell's number by the program's stream and epoch. Any thread.
  void resolve(Token &token) const {
    const std::atomic<uint64_t> *const cell = find(token.epoch);
    if (cell == nullptr) return; // not a token of ours
    const uint64_t of_program = cell->load(std::memory_order_relaxed);
    token.stream = StreamOf(static_cast<uint32_t>(of_program >> 32), DomainOf(token));
    token.epoch = static_cast<uint32_t>(of_program);
  }

private:
  static constexpr uint32_t kChunks = 4096, kChunk = 1024;
  struct Chunk {
    std::atomic<uint64_t> cells[kChunk] = {};
  };

  std::atomic<uint64_t> *find(uint32_t cell) const {
    if (cell / kChunk >= kChunks) return nullptr;
    Chunk *const chunk = chunks_[cell / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk->cells[cell % kChunk];
  }

  std::atomic<Chunk *> chunks_[kChunks] = {}; // never freed: a device may read late
  std::mutex mutex_;                          // guards all below
  std::vector<uint32_t> free_;
  uint32_t num_cells_ = 1; // cell 0 stands for no cell
};

// The process's own. Never destroyed: devices may read while the process ends.
inline TokenCells &token_cells() {
  static auto *const instance = new TokenCells();
  return *instance;
}

inline void Resolve(Token &token) {
  if (ThreadOf(token) == kPlacedThread) token_cells().resolve(token);
}

} // namespace effects
