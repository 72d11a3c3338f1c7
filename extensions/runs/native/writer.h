// Writes a run file, which is mapped into memory: however the process ends, all written records are in the file.
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

// One per process, since the publisher has one tap.
//
// A thread may be about to write while the file is closed:
//   1. The thread sees that a file is open.
//   2. Another thread unmaps the file.
//   3. The first thread writes to unmapped memory.
// So a thread first marks that it writes, and then checks that a file is open; close() removes the file and then waits
// until no thread writes. Each thread has its own mark, so that no cache line is contended.
class Writer final : public Tap {
public:
  // Throws std::runtime_error for the file system. Once the file is full, it is overwritten from its beginning. Renames
  // a present file. Returns false if another process records into that file, or its inode is not `inode`.
  bool open(const std::string &path, uint64_t capacity, std::optional<uint64_t> inode = {});
  // Truncates the file to the size of its records.
  void close();
  // Appends a description, before any record that needs it. Returns false if the file system has no room.
  bool describe(Kind kind, uint64_t site, std::string_view text);

  void take(const RecordHeader &header, const Span *spans, size_t count) noexcept override;

private:
  static constexpr uint64_t kNone = ~uint64_t{0}, kSegments = 2;
  uint64_t reserve(FileHeader &file, uint64_t size);
  void prepare();
  void shrink(FileHeader &file);
  static void leave_to_parent();

  std::mutex mutex_; // guards opening, closing and descriptions
  int file_ = -1;
  uint64_t end_ = 0;        // the place of the next description
  bool has_thread_ = false; // true once a thread prefaults pages

  std::atomic<FileHeader *> mapped_{nullptr};
  std::condition_variable wanted_; // pages are wanted
};

Writer &writer();

} // namespace effects::runs
