#include "writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "dispatch/native/xla/runtime.h"

namespace effects::runs {
namespace {

// Closes a file that could not be opened whole.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

[[noreturn]] void Throw(int error) { throw std::runtime_error(std::strerror(error)); }

// A new file, which is locked. One that exists goes out of the folder: who reads it keeps it.
int Create(const std::string &path) {
  for (;;) {
    Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    if (file.number < 0) Throw(errno);
    if (::flock(file.number, LOCK_EX | LOCK_NB) != 0) throw std::runtime_error("another process records into it");
    struct stat opened{}, named{};
    if (::fstat(file.number, &opened) != 0) Throw(errno);
    // Another process may have taken the file out of the folder meanwhile.
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) continue;
    if (opened.st_size == 0) return std::exchange(file.number, -1);
    if (!S_ISREG(opened.st_mode)) throw std::runtime_error("it is no file");
    if (::unlink(path.c_str()) != 0) Throw(errno);
  }
}

int Allocate(int file, uint64_t size) {
#if defined(__linux__)
  return ::posix_fallocate(file, 0, static_cast<off_t>(size));
#else
  return ::ftruncate(file, static_cast<off_t>(size)) == 0 ? 0 : errno;
#endif
}

std::byte *RecordsOf(FileHeader *file) { return reinterpret_cast<std::byte *>(file) + kPage; }

constexpr uint64_t kPiece = 1 << 20;

// Has the pages of a piece of the records ready: a fault for each, while records are written, takes thrice the time.
void Prepare(FileHeader *file, uint64_t position) {
#if defined(MADV_POPULATE_WRITE)
  const uint64_t begin = position % file->capacity;
  ::madvise(RecordsOf(file) + begin, std::min(kPiece, file->capacity - begin), MADV_POPULATE_WRITE);
#endif
}

} // namespace

bool Writer::open(const std::string &path, uint64_t capacity, bool keeps_newest) {
  std::lock_guard lock(mutex_);
  if (file_ >= 0) return false;
  Descriptor file{Create(path)};
  segments_ = keeps_newest ? 2 : 1;
  const uint64_t segment = capacity / segments_ / kPage * kPage;
  end_ = kPage + segment * segments_;
  // All room is taken now: a page that finds none later would end the process.
  if (const int error = Allocate(file.number, end_); error != 0) {
    if (::ftruncate(file.number, 0) != 0) Throw(errno);
    Throw(error);
  }
  void *const memory = ::mmap(nullptr, end_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (memory == MAP_FAILED) Throw(errno);
  auto *const header = new (memory) FileHeader{};
  std::memcpy(header->magic, kMagic, sizeof kMagic);
  header->version = kVersion;
  header->byte_order = kByteOrder;
  header->capacity = segment * segments_;
  header->segment = segment;
  std::random_device random;
  header->seed = uint64_t{random()} << 32 | random();
  header->checksum = Checksum(header->seed, header, offsetof(FileHeader, seed));
  file_ = std::exchange(file.number, -1);
  Prepare(header, 0);
  Prepare(header, kPiece);
  mapped_.store(header, std::memory_order_seq_cst);
  publisher().tap.store(this, std::memory_order_release);
  return true;
}

void Writer::close() {
  std::lock_guard lock(mutex_);
  if (file_ < 0) return;
  publisher().tap.store(nullptr, std::memory_order_release);
  FileHeader *const header = mapped_.exchange(nullptr, std::memory_order_seq_cst);
  while (writing_.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  header->closed.store(1, std::memory_order_release);
  ::munmap(header, kPage + header->capacity);
  ::flock(file_, LOCK_UN); // also where a child has the file, which has been forked meanwhile
  ::close(file_);
  file_ = -1;
}

void Writer::sync() {
  std::lock_guard lock(mutex_);
  if (file_ < 0) return;
  FileHeader *const header = mapped_.load(std::memory_order_relaxed);
  if (::msync(header, kPage + header->capacity, MS_SYNC) != 0 || ::fsync(file_) != 0) Throw(errno);
}

bool Writer::describe(Kind kind, uint64_t site, std::string_view text) {
  std::lock_guard lock(mutex_);
  if (file_ < 0) return true;
  std::vector<std::byte> bytes(sizeof(EntryHeader) + RoundUp8(text.size()));
  auto *const entry = new (bytes.data()) EntryHeader{};
  entry->record.size = static_cast<uint32_t>(bytes.size());
  entry->record.kind = kind;
  entry->record.site = site;
  entry->record.payload_size = text.size();
  std::memcpy(bytes.data() + sizeof *entry, text.data(), text.size());
  entry->checksum = SumOf(entry, mapped_.load(std::memory_order_relaxed)->seed, end_, bytes.size());
  // In one call, which no signal that ends the process divides.
  const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(end_));
  if (written != static_cast<ssize_t>(bytes.size())) return false;
  end_ += bytes.size();
  return true;
}

uint64_t Writer::lost() {
  std::lock_guard lock(mutex_);
  FileHeader *const header = mapped_.load(std::memory_order_relaxed);
  return header == nullptr ? 0 : header->lost.load(std::memory_order_relaxed);
}

// The position of so many bytes, all in one segment.
uint64_t Writer::reserve(FileHeader &file, uint64_t size) const {
  const uint64_t segment = file.segment;
  if (size > segment) return kNone;
  uint64_t taken = file.taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t left = segment - taken % segment;
    const uint64_t at = size <= left ? taken : taken + left;
    if (segments_ == 1 && at + size > segment) return kNone;
    if (file.taken.compare_exchange_weak(taken, at + size, std::memory_order_relaxed)) {
      if (const uint64_t piece = (at + size) / kPiece; piece != taken / kPiece) Prepare(&file, (piece + 1) * kPiece);
      return at;
    }
  }
}

void Writer::take(const RecordHeader &header, const Span *spans, size_t count) noexcept {
  writing_.fetch_add(1, std::memory_order_seq_cst); // with the exchange in close(): one of us sees the other
  if (FileHeader *const file = mapped_.load(std::memory_order_seq_cst)) {
    const size_t size = sizeof(EntryHeader) + header.payload_size;
    if (const uint64_t at = reserve(*file, size); at != kNone) {
      auto *const entry = reinterpret_cast<EntryHeader *>(RecordsOf(file) + at % file->capacity);
      entry->record = header;
      entry->record.size = static_cast<uint32_t>(size);
      entry->record.reply = static_cast<uint32_t>(at / file->segment);
      if (header.time == 0) entry->record.time = UnixTime();
      auto *to = reinterpret_cast<std::byte *>(entry + 1);
      for (size_t i = 0; i < count; ++i) {
        if (spans[i].size != 0) std::memcpy(to, spans[i].data, spans[i].size);
        std::memset(to + spans[i].size, 0, RoundUp8(spans[i].size) - spans[i].size);
        to += RoundUp8(spans[i].size);
      }
      // Last, so that what is killed before has no entry.
      const uint64_t sum = SumOf(entry, file->seed, at, size);
      __atomic_store_n(&entry->checksum, sum, __ATOMIC_RELEASE);
    } else {
      file->lost.fetch_add(1, std::memory_order_relaxed);
    }
  }
  writing_.fetch_sub(1, std::memory_order_release);
}

Writer &writer() {
  static Writer &all = *new Writer; // never destroyed: XLA's threads may outlive what is static
  return all;
}

} // namespace effects::runs
