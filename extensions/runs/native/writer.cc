#include "writer.h"

#include <fcntl.h>
#include <pthread.h>
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

// Closes a file that could not be opened completely.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

[[noreturn]] void Throw(int error) { throw std::runtime_error(std::strerror(error)); }

// A name beside the path that no file has.
std::string NameBeside(const std::string &path) {
  struct stat named{};
  for (uint64_t number = 1;; ++number)
    if (const std::string name = path + '.' + std::to_string(number); ::lstat(name.c_str(), &named) != 0) return name;
}

// A new, locked file. A present file is renamed; -1 if it belongs to another recording.
int Create(const std::string &path, std::optional<uint64_t> inode) {
  for (;;) {
    Descriptor file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600)};
    if (file.number < 0) Throw(errno);
    struct stat opened{}, named{};
    if (::fstat(file.number, &opened) != 0) Throw(errno);
    if (!S_ISREG(opened.st_mode)) throw std::runtime_error("it is no file");
    // The kernel releases such a lock when the last descriptor of this open file is closed. Readers test the lock and
    // take none.
    struct flock lock{};
    lock.l_type = F_WRLCK;
    if (::fcntl(file.number, F_OFD_SETLK, &lock) != 0) {
      if (errno != EAGAIN && errno != EACCES) Throw(errno);
      return -1;
    }
    // Another process may have renamed the file meanwhile, or recorded into it and ended.
    if (::stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) continue;
    if (named.st_size == 0) return std::exchange(file.number, -1);
    if (inode && *inode != named.st_ino) return -1;
    if (::rename(path.c_str(), NameBeside(path).c_str()) != 0) Throw(errno);
  }
}

std::byte *RecordsOf(FileHeader *file) { return reinterpret_cast<std::byte *>(file) + kPage; }

constexpr uint64_t kPiece = 1 << 20;

// Prefaults the pages of the next records: the first write to a page takes as long as several prints.
void Prepare(FileHeader *file, uint64_t taken) {
#if defined(MADV_POPULATE_WRITE)
  for (uint64_t position = taken; position <= taken + kPiece; position += kPiece) {
    const uint64_t begin = position % file->capacity;
    ::madvise(RecordsOf(file) + begin, std::min(kPiece, file->capacity - begin), MADV_POPULATE_WRITE);
  }
#endif
}

// True while a thread may write to the mapping.
struct Writing {
  Writing() {
    std::lock_guard lock(mutex);
    threads.push_back(&is_so);
  }
  ~Writing() {
    std::lock_guard lock(mutex);
    threads.erase(std::find(threads.begin(), threads.end(), &is_so));
  }
  static void await_none() {
    std::lock_guard lock(mutex);
    for (const auto *thread : threads)
      while (thread->load(std::memory_order_seq_cst)) std::this_thread::yield();
  }
  static void begin_anew(); // in a forked child, which has one thread
  std::atomic<bool> is_so{false};

  // Never destroyed, as threads may outlive what is static.
  static inline std::mutex &mutex = *new std::mutex();
  static inline auto &threads = *new std::vector<const std::atomic<bool> *>();
};
thread_local Writing writing;
void Writing::begin_anew() {
  new (&mutex) std::mutex();
  new (&threads) std::vector<const std::atomic<bool> *>();
  const std::atomic<bool> *const own = &writing.is_so; // a new thread adds itself
  if (threads.empty()) threads.push_back(own);
}

// Copies to the file, and updates the checksum. Returns the place of the next bytes.
inline std::byte *Append(std::byte *to, Checksum &sum, const void *data, size_t size) {
  const auto *from = static_cast<const std::byte *>(data);
  uint64_t word = 0;
  for (; size >= sizeof word; size -= sizeof word, from += sizeof word, to += sizeof word) {
    std::memcpy(&word, from, sizeof word);
    std::memcpy(to, &word, sizeof word);
    sum.add(word);
  }
  if (size == 0) return to;
  if (uint32_t half; size == sizeof half) { // the common case; a load of a just written part of a word would stall
    std::memcpy(&half, from, sizeof half);
    word = half;
  } else {
    word = 0;
    std::memcpy(&word, from, size);
  }
  std::memcpy(to, &word, sizeof word);
  sum.add(word);
  return to + sizeof word;
}

} // namespace

bool Writer::open(const std::string &path, uint64_t capacity, std::optional<uint64_t> inode) {
  std::lock_guard lock(mutex_);
  Descriptor file{Create(path, inode)};
  if (file.number < 0) return false;
  const uint64_t segment = capacity / kSegments / kPage * kPage;
  end_ = kPage + segment * kSegments;
  // Allocates the whole file now: a page without room later would end the process (SIGBUS).
  if (const int error = ::posix_fallocate(file.number, 0, static_cast<off_t>(end_)); error != 0) {
    ::unlink(path.c_str());
    Throw(error);
  }
  void *const memory = ::mmap(nullptr, end_, PROT_READ | PROT_WRITE, MAP_SHARED, file.number, 0);
  if (memory == MAP_FAILED) Throw(errno);
  auto *const header = new (memory) FileHeader{};
  std::memcpy(header->magic, kMagic, sizeof kMagic);
  header->version = kVersion;
  header->byte_order = kByteOrder;
  header->capacity = segment * kSegments;
  header->segment = segment;
  std::random_device random;
  header->seed = uint64_t{random()} << 32 | random();
  header->checksum = SumOf(*header);
  file_ = std::exchange(file.number, -1);
  static const int in_children = ::pthread_atfork(nullptr, nullptr, leave_to_parent);
  static_cast<void>(in_children);
  Prepare(header, 0);
  if (!std::exchange(has_thread_, true)) std::thread([this] { prepare(); }).detach();
  mapped_.store(header, std::memory_order_seq_cst);
  publisher().tap.store(this, std::memory_order_release);
  return true;
}

void Writer::close() {
  std::lock_guard lock(mutex_);
  if (file_ < 0) return;
  publisher().tap.store(nullptr, std::memory_order_release);
  FileHeader *const header = mapped_.exchange(nullptr, std::memory_order_seq_cst);
  Writing::await_none();
  const uint64_t size = kPage + header->capacity;
  shrink(*header);
  ::munmap(header, size);
  ::close(file_);
  file_ = -1;
}

// Moves the descriptions after the written records, marks the file as closed, and truncates the rest. Each is one call,
// and if the process is killed between two of them, the file is whole.
void Writer::shrink(FileHeader &file) {
  const uint64_t begin = kPage + file.capacity, used = file.taken.load(std::memory_order_relaxed);
  const uint64_t capacity = std::min(file.capacity, (used + kPage - 1) / kPage * kPage);
  std::vector<std::byte> text(end_ - begin);
  const auto size = static_cast<ssize_t>(text.size());
  const bool moves = kPage + capacity + text.size() <= begin &&
                     ::pread(file_, text.data(), text.size(), static_cast<off_t>(begin)) == size &&
                     ::pwrite(file_, text.data(), text.size(), static_cast<off_t>(kPage + capacity)) == size;
  alignas(FileHeader) std::byte bytes[sizeof file];
  std::memcpy(bytes, &file, sizeof file);
  auto &closed = *reinterpret_cast<FileHeader *>(bytes);
  if (moves) closed.capacity = capacity;
  closed.checksum = SumOf(closed);
  closed.closed = SumOf(closed, offsetof(FileHeader, closed));
  if (::pwrite(file_, bytes, sizeof bytes, 0) != sizeof bytes || !moves) return;
  if (::ftruncate(file_, static_cast<off_t>(kPage + capacity + text.size())) != 0) return; // too long, but whole
}

// In a forked child: the file is the parent's. Locks of the parent's other threads stay locked here.
void Writer::leave_to_parent() {
  Writer &all = writer();
  publisher().tap.store(nullptr, std::memory_order_relaxed);
  if (FileHeader *const header = all.mapped_.load(std::memory_order_relaxed))
    ::munmap(header, kPage + header->capacity);
  if (all.file_ >= 0) ::close(all.file_);
  new (&all) Writer();
  Writing::begin_anew();
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
  FileHeader &file = *mapped_.load(std::memory_order_relaxed);
  entry->checksum = SumOf(entry, file.seed, end_ - kPage - file.capacity, bytes.size());
  // In one call, so that a signal that ends the process cannot split it.
  const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(end_));
  if (written == static_cast<ssize_t>(bytes.size())) {
    end_ += bytes.size();
    return true;
  }
  file.lost.fetch_add(1, std::memory_order_relaxed); // so that readers report missing records
  return false;
}

// Runs in a thread of its own.
void Writer::prepare() {
  std::mutex mutex; // guards nothing: after a missed notification, pages are only ready later
  for (std::unique_lock lock(mutex);;) {
    wanted_.wait(lock);
    writing.is_so.store(true, std::memory_order_seq_cst);
    if (FileHeader *const file = mapped_.load(std::memory_order_seq_cst)) Prepare(file, file->taken / kPiece * kPiece);
    writing.is_so.store(false, std::memory_order_release);
  }
}

// Takes a position for `size` bytes, all in one segment.
uint64_t Writer::reserve(FileHeader &file, uint64_t size) {
  const uint64_t segment = file.segment;
  if (size > segment || size > UINT32_MAX) return kNone;
  uint64_t taken = file.taken.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t left = segment - taken % segment;
    const uint64_t at = size <= left ? taken : taken + left;
    if (file.taken.compare_exchange_weak(taken, at + size, std::memory_order_relaxed)) {
      if (at != taken)
        __atomic_store_n(reinterpret_cast<uint64_t *>(RecordsOf(&file) + taken % file.capacity),
                         EndOfSegment(file.seed, taken), __ATOMIC_RELAXED);
      if ((at + size) / kPiece != taken / kPiece) wanted_.notify_one();
      return at;
    }
  }
}

void Writer::take(const RecordHeader &header, const Span *spans, size_t count) noexcept {
  std::atomic<bool> &is_writing = writing.is_so;
  is_writing.store(true, std::memory_order_seq_cst); // with the exchange in close(): one sees the other's store
  if (FileHeader *const file = mapped_.load(std::memory_order_seq_cst)) {
    const size_t size = sizeof(EntryHeader) + header.payload_size;
    if (const uint64_t at = reserve(*file, size); at != kNone) {
      std::byte *const entry = RecordsOf(file) + at % file->capacity;
      RecordHeader record = header;
      record.size = static_cast<uint32_t>(size);
      record.reply = static_cast<uint32_t>(at / file->segment);
      if (header.reply != 0 && header.kind == Kind::kUnordered && (header.flags & kReplicated) != 0)
        record.device = kAllDevices; // one device asks for all: the first to come to this call
      if (header.time == 0) record.time = UnixTime();
      Checksum sum(file->seed, at);
      std::byte *to = Append(entry + offsetof(EntryHeader, record), sum, &record, sizeof record);
      for (size_t i = 0; i < count; ++i) to = Append(to, sum, spans[i].data, spans[i].size);
      // Last, so that a process killed before leaves no entry.
      __atomic_store_n(reinterpret_cast<uint64_t *>(entry), sum.value(), __ATOMIC_RELEASE);
    } else {
      file->lost.fetch_add(1, std::memory_order_relaxed);
    }
  }
  is_writing.store(false, std::memory_order_release);
}

Writer &writer() {
  static Writer &all = *new Writer; // never destroyed: XLA's threads may outlive static objects
  return all;
}

} // namespace effects::runs
