// Reads run files, also such as are being written, cut off or damaged: what is whole is read, the rest is counted.
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
  // Throws std::invalid_argument, which says why the file is no run, and std::runtime_error of the file system.
  explicit RunFile(const std::string &path);
  RunFile(const RunFile &) = delete;
  ~RunFile();

  struct Described {
    Kind kind;
    uint64_t site;
    std::string text;
  };
  // What describes the records, as far as no call before has returned it.
  std::vector<Described> described();

  // Looks for the entries of records. Returns how many gaps there are: places where records were begun and not ended, or
  // are damaged, or overwritten by a thread that was stopped meanwhile.
  uint64_t scan();
  // Looks for those that have been written since the last look. What is still being written is looked at again.
  void look();
  const std::vector<uint64_t> &entries() const { return entries_; } // where they begin, by segment

  const RecordHeader &record(uint64_t entry) const { return at(entry)->record; }
  const std::byte *payload(uint64_t entry) const { return reinterpret_cast<const std::byte *>(at(entry) + 1); }
  uint64_t lost() const { return header().lost.load(std::memory_order_relaxed); }
  bool is_written() const; // a process records into it now
  bool is_cut() const { return is_cut_; } // `scan` has seen that the first records are overwritten
  bool is_closed() const { return header().closed.load(std::memory_order_relaxed) != 0; }

  // Processes of one job, as JAX's of one run, have the same programs. A token means another effect in another job.
  uint32_t job = 0;

private:
  const FileHeader &header() const { return *static_cast<const FileHeader *>(memory_); }
  const EntryHeader *at(uint64_t offset) const {
    return reinterpret_cast<const EntryHeader *>(static_cast<const std::byte *>(memory_) + offset);
  }
  // The size of the entry that lies here; 0 if none does.
  uint64_t size_of_entry(uint64_t offset, uint64_t end, uint64_t position) const;
  bool ends_here(uint64_t offset, uint64_t position) const; // a segment
  // Maps as much as the file has now, or copies it.
  void take();
  void copy(uint64_t from, uint64_t to);
  void check() const;
  void release();

  int file_ = -1;
  // The file, or a copy: what was whole when it was looked at may be overwritten while the process goes on.
  void *memory_ = nullptr;
  bool is_copy_ = false, is_cut_ = false;
  uint64_t size_ = 0;
  std::vector<uint64_t> entries_;
  uint64_t described_ = 0;                            // how much of what describes
  uint64_t looked_ = 0;                               // up to which position
  std::vector<std::pair<uint64_t, uint64_t>> unread_; // positions ahead of that where nothing whole was
};

// A program: its job, and there its thread and number.
struct ProgramKey {
  uint32_t job;
  uint64_t of;

  bool operator==(const ProgramKey &other) const { return job == other.job && of == other.of; }
  bool operator<(const ProgramKey &other) const { return job != other.job ? job < other.job : of < other.of; }
};
struct HashOfProgram {
  size_t operator()(const ProgramKey &key) const { return std::hash<uint64_t>{}(key.of ^ uint64_t{key.job} << 56); }
};

// What was read before, where a run is read one part after the other: by program, for the newest programs.
class Earlier {
public:
  struct Program {
    double called = 0; // when it was dispatched, or else its first record was published
    std::map<std::pair<uint32_t, uint64_t>, uint64_t> reached;  // by file and domain: all places below were read
    std::map<uint64_t, std::pair<uint32_t, int32_t>> says;      // by site, of what has no order: the file and device
    std::map<std::string, std::map<uint32_t, uint64_t>> counts; // by what it is: how often in each file
  };
  Program &operator[](const ProgramKey &program);
  void keep_newest();

private:
  static constexpr size_t kPrograms = 4096; // more than devices have begun at a time

  std::unordered_map<ProgramKey, Program, HashOfProgram> programs_;
  std::deque<ProgramKey> order_;
};

// The records of a run in program order, of all its processes: programs in the order of their dispatches, and in each
// the place that tokens say. Programs that a callback has called come behind its record. What all devices or processes
// of a program have is there once.
class Records {
public:
  // `earlier`: of those which were read before, if this is not all.
  explicit Records(std::vector<std::shared_ptr<RunFile>> files, Earlier *earlier = nullptr);

  // Of these sites, devices (each of one file) and files, and not before this time.
  using Devices = std::vector<std::pair<uint32_t, int32_t>>;
  Records select(const std::optional<std::vector<uint64_t>> &sites, const std::optional<Devices> &devices,
                 const std::optional<std::vector<uint32_t>> &files, double since) const;
  // The last so many of these.
  Records last(size_t count) const;
  // The newest of each process, thread and device, of all that there are.
  Records newest() const;

  size_t size() const { return places_.size(); }
  // Headers and payloads of records first to last, into the memory that `allocate` returns for so many bytes, and which
  // file each is of.
  std::vector<uint32_t> read(size_t first, size_t last, const std::function<char *(size_t)> &allocate) const;
  struct Count {
    uint64_t count = 0;
    double first = 0, last = 0; // when they were published
  };
  // How many there are of each site in each file.
  std::map<std::pair<uint32_t, uint64_t>, Count> count() const;

  struct Event {
    uint32_t file;
    RecordHeader header;
    std::string text;
  };
  // What the host did and devices said besides, by time.
  std::vector<Event> events() const;

private:
  struct Place {
    double program; // when it was dispatched
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
