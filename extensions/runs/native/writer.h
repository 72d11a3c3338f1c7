// Writes a run file, which is mapped into memory: whatever ends the process, what has been written is in the file.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "dispatch/native/producer/publisher.h"
#include "format.h"

namespace effects::runs {

// The process's one, as the publisher has one tap.
//
// A thread may be about to write while the file is closed:
//   1. The thread sees that a file is open.
//   2. Another unmaps it.
//   3. The thread writes to memory that is gone.
// So a thread says that it writes and then looks whether a file is open; who closes takes the file away and then waits
// until no thread writes. Each thread says it in a place of its own, so that no thread waits for another's cache line.
class Writer final : public Tap {
public:
  // Throws std::runtime_error, which says what the file system did. Once the file is full it goes on at its begin. A file
  // that is there is kept under another name, unless it is not the one with this inode: then, and if another process
  // records into it, returns false.
  bool open(const std::string &path, uint64_t capacity, std::optional<uint64_t> inode = {});
  // The file then takes what its records need.
  void close();
  // Appends what describes records, before any that needs it. Returns false if the file system has no room.
  bool describe(Kind kind, uint64_t site, std::string_view text);

  void take(const RecordHeader &header, const Span *spans, size_t count) noexcept override;

private:
  static constexpr uint64_t kNone = ~uint64_t{0}, kSegments = 2;
  uint64_t reserve(FileHeader &file, uint64_t size);
  void prepare();
  void shrink(FileHeader &file);
  static void leave_to_parent();

  std::mutex mutex_; // guards opening, closing and what describes
  int file_ = -1;
  uint64_t end_ = 0; // where the next description goes
  bool has_thread_ = false; // which prepares pages

  std::atomic<FileHeader *> mapped_{nullptr};
  std::condition_variable wanted_; // are pages
};

Writer &writer();

} // namespace effects::runs
