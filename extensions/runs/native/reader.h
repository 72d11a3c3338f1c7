// Reads run files, also files that are being written, truncated or damaged: whole entries are read, gaps are counted.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "format.h"

namespace effects::runs {

class RunFile {
public:
  // Throws std::invalid_argument with the reason if the file is not a run, and std::runtime_error for the file system.
  explicit RunFile(const std::string &path);
  RunFile(const RunFile &) = delete;
  ~RunFile();

  struct Described {
    Kind kind;
    uint64_t site;
    std::string text;
  };
  // The descriptions that no earlier call has returned.
  std::vector<Described> described();

  // Scans the entries of records. Returns the number of gaps: records half written, damaged, or overwritten by a thread
  // that was stopped meanwhile.
  uint64_t scan();
  // Scans the entries written since the last scan. Half-written ones are scanned again the next time.
  void look();
  const std::vector<uint64_t> &entries() const { return entries_; } // their offsets, by segment

  const RecordHeader &record(uint64_t entry) const { return at(entry)->record; }
  const std::byte *payload(uint64_t entry) const { return reinterpret_cast<const std::byte *>(at(entry) + 1); }
  uint64_t lost() const { return header().lost.load(std::memory_order_relaxed); }
  bool is_written() const;                // a process is recording into it
  bool is_cut() const { return is_cut_; } // `scan` has found the first records overwritten
  bool is_closed() const { return header().closed.load(std::memory_order_relaxed) != 0; }

  // Processes of one job (JAX's processes of one run) have the same programs. In another job a token means another
  // effect.
  uint32_t job = 0;

private:
  const FileHeader &header() const { return *static_cast<const FileHeader *>(memory_); }
  const EntryHeader *at(uint64_t offset) const {
    return reinterpret_cast<const EntryHeader *>(static_cast<const std::byte *>(memory_) + offset);
  }
  // The size of the entry here; 0 if there is none.
  uint64_t size_of_entry(uint64_t offset, uint64_t end, uint64_t position) const;
  bool ends_here(uint64_t offset, uint64_t position) const; // True if a segment ends here
  // Maps or copies the file's present contents.
  void take();
  void copy(uint64_t from, uint64_t to);
  void check() const;
  void release();

  int file_ = -1;
  // The file, or a copy: an entry that was whole when scanned may be overwritten while the process runs.
  void *memory_ = nullptr;
  bool is_copy_ = false, is_cut_ = false;
  uint64_t size_ = 0;
  std::vector<uint64_t> entries_;
  uint64_t described_ = 0;                            // bytes of descriptions read
  uint64_t looked_ = 0;                               // the position scanned so far
  std::vector<std::pair<uint64_t, uint64_t>> unread_; // earlier positions without a whole entry
};

// A program: its job, thread and number.
struct ProgramKey {
  uint32_t job;
  uint64_t of;

  bool operator==(const ProgramKey &other) const { return job == other.job && of == other.of; }
  bool operator<(const ProgramKey &other) const { return job != other.job ? job < other.job : of < other.of; }
};
struct HashOfProgram {
  size_t operator()(const ProgramKey &key) const { return std::hash<uint64_t>{}(key.of ^ uint64_t{key.job} << 56); }
};

// The earlier parts of a run that is read in parts: by program, for the newest programs.
class Earlier {
public:
  struct Program {
    double called = 0;                                          // the time of the dispatch, else of the first record
    std::map<std::pair<uint32_t, uint64_t>, uint64_t> reached;  // by file and domain: places below have been read
    std::map<uint64_t, std::pair<uint32_t, int32_t>> reporters; // by site, for unordered effects: the file and device
    std::map<std::string, std::map<uint32_t, uint64_t>> counts; // by effect: the count in each file
  };
  Program &operator[](const ProgramKey &program);
  void keep_newest();

private:
  static constexpr size_t kPrograms = 4096; // more than devices run at a time

  std::unordered_map<ProgramKey, Program, HashOfProgram> programs_;
  std::deque<ProgramKey> order_;
};

// The records of all processes of a run in program order: by dispatch, then by place. Programs that a callback has
// called come after its record. A record that all devices or processes of a program have is there once.
class Records {
public:
  // `earlier`: the parts read before, if this is not the first.
  explicit Records(std::vector<std::shared_ptr<RunFile>> files, Earlier *earlier = nullptr);

  // Keeps the records of these sites, devices (each of one file) and files, from this time on.
  using Devices = std::vector<std::pair<uint32_t, int32_t>>;
  Records select(const std::optional<std::vector<uint64_t>> &sites, const std::optional<Devices> &devices,
                 const std::optional<std::vector<uint32_t>> &files, double since) const;
  // Keeps the last `count`.
  Records last(size_t count) const;
  // The newest record of each process, thread and device, before any of these filters.
  Records newest() const;

  size_t size() const { return places_.size(); }
  // Headers and payloads of records `first` to `last`, into memory from `allocate`, and the file of each record.
  std::vector<uint32_t> read(size_t first, size_t last, const std::function<char *(size_t)> &allocate) const;
  struct Count {
    uint64_t count = 0;
    double first = 0, last = 0; // times of publishing
  };
  // The counts by site and file.
  std::map<std::pair<uint32_t, uint64_t>, Count> count() const;

  struct Event {
    uint32_t file;
    RecordHeader header;
    std::string text;
  };
  // The notes of the host and of devices, by time.
  std::vector<Event> events() const;

private:
  struct Place {
    double program; // the time of its dispatch
    uint32_t job;
    uint64_t domain, place;
    uint32_t file;
    int32_t device;
    uint64_t entry;
  };
  ProgramKey key_of(uint32_t file, const RecordHeader &record) const;
  void leave_out_copies_of(Earlier &earlier);
  void leave_out_unordered_copies(Earlier &earlier);
  void put_behind_callers();
  const RecordHeader &header(const Place &place) const { return files_[place.file]->record(place.entry); }
  bool is_same(const Place &a, const Place &b) const;

  std::vector<std::shared_ptr<RunFile>> files_;
  std::vector<Place> places_;
};

} // namespace effects::runs
