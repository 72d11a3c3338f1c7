#include "reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace effects::runs {
namespace {

bool IsOfRecords(Kind kind) {
  return (kind >= Kind::kOrdered && kind <= Kind::kSkip) || (kind >= Kind::kDispatched && kind <= Kind::kEnded);
}
bool IsRecord(Kind kind) { return kind == Kind::kOrdered || kind == Kind::kUnordered; }

uint64_t NumberOfCall(const Token &token) { return uint64_t{ThreadOf(token)} << 32 | token.epoch; }

// A replicated record is of all devices, as in the drain.
int32_t DeviceOf(const RecordHeader &record) { return (record.flags & kReplicated) != 0 ? kAllDevices : record.device; }

} // namespace

RunFile::RunFile(const std::string &path) {
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) throw std::runtime_error(std::strerror(errno));
  try {
    take();
    check();
  } catch (...) {
    release();
    throw;
  }
}

RunFile::~RunFile() { release(); }

void RunFile::release() {
  if (is_copy_)
    std::free(memory_);
  else if (memory_ != nullptr)
    ::munmap(memory_, size_);
  ::close(file_);
}

void RunFile::take() {
  struct stat status{};
  if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) throw std::invalid_argument("it is no file");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size <= size_ || size < kPage) return;
  if (size_ == 0) is_copy_ = is_written();
  void *const memory = is_copy_ ? std::realloc(memory_, size) : ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file_, 0);
  if (memory == MAP_FAILED || memory == nullptr) throw std::runtime_error(std::strerror(errno));
  if (!is_copy_ && memory_ != nullptr) ::munmap(memory_, size_);
  const uint64_t from = std::exchange(size_, size);
  memory_ = memory;
  if (is_copy_) copy(from, size);
}

void RunFile::copy(uint64_t from, uint64_t to) {
  auto *const memory = static_cast<std::byte *>(memory_);
  while (from < to) {
    const ssize_t got = ::pread(file_, memory + from, to - from, static_cast<off_t>(from));
    if (got <= 0) break;
    from += static_cast<uint64_t>(got);
  }
  std::memset(memory + from, 0, to - from);
}

void RunFile::check() const {
  if (memory_ == nullptr && ::lseek(file_, 0, SEEK_END) == 0) throw std::invalid_argument("it is empty");
  if (memory_ == nullptr || std::memcmp(header().magic, kMagic, sizeof kMagic) != 0)
    throw std::invalid_argument("it is no run file");
  if (header().byte_order == __builtin_bswap32(kByteOrder))
    throw std::invalid_argument("it is of a machine with another byte order");
  if (header().version != kVersion)
    throw std::invalid_argument("it is of version " + std::to_string(header().version) +
                                ", and this library reads version " + std::to_string(kVersion));
  const uint64_t segment = header().segment, capacity = header().capacity;
  const bool is_damaged = is_closed() && header().closed != SumOf(header(), offsetof(FileHeader, closed));
  if (is_damaged || header().checksum != SumOf(header()) || segment == 0 || segment % 8 != 0 || capacity % 8 != 0)
    throw std::invalid_argument("its first page is damaged");
  if (!is_written() && size_ < kPage + capacity)
    throw std::invalid_argument("it is cut ahead of what describes its records");
}

bool RunFile::is_written() const {
  struct flock lock{};
  lock.l_type = F_RDLCK;
  return ::fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

uint64_t RunFile::size_of_entry(uint64_t offset, uint64_t end, uint64_t position) const {
  if (end - offset < sizeof(EntryHeader)) return 0;
  const EntryHeader *const entry = at(offset);
  const uint64_t size = entry->record.size;
  if (size < sizeof *entry || size % 8 != 0 || size > end - offset) return 0;
  const uint64_t payload = entry->record.payload_size;
  if (payload > size || RoundUp8(payload) != size - sizeof *entry) return 0;
  return entry->checksum == SumOf(entry, header().seed, position, size) ? size : 0;
}

std::vector<RunFile::Described> RunFile::described() {
  take();
  std::vector<Described> all;
  uint64_t begin;
  do { // again if the process has closed the file meanwhile, which moves the descriptions
    begin = kPage + header().capacity;
    if (is_copy_ && begin + described_ < size_) copy(begin + described_, size_);
    if (is_copy_) copy(0, kPage);
  } while (kPage + header().capacity != begin);
  for (uint64_t offset = begin + described_; offset + sizeof(EntryHeader) <= size_;) {
    const uint64_t size = size_of_entry(offset, size_, offset - begin);
    if (size != 0) {
      const RecordHeader &entry = record(offset);
      all.push_back({entry.kind, entry.site, {reinterpret_cast<const char *>(payload(offset)), entry.payload_size}});
      described_ = offset + size - begin;
    }
    offset += size != 0 ? size : 8;
  }
  return all;
}

bool RunFile::ends_here(uint64_t offset, uint64_t position) const {
  uint64_t word = 0;
  if (offset + sizeof word <= size_) std::memcpy(&word, at(offset), sizeof word);
  return word == EndOfSegment(header().seed, position);
}

uint64_t RunFile::scan() {
  const uint64_t capacity = header().capacity, segment = header().segment, last = std::min(size_, kPage + capacity);
  const uint64_t segments = (capacity + segment - 1) / segment;
  // The whole entries, by segment; and the highest position taken.
  std::vector<std::vector<uint64_t>> whole(segments);
  uint64_t taken = 0, oldest = ~uint64_t{0};
  for (uint64_t number = 0; number < segments; ++number) {
    const uint64_t begin = kPage + number * segment, end = std::min(begin + segment, last) / 8 * 8;
    for (uint64_t offset = begin; offset + sizeof(EntryHeader) <= end;) {
      const RecordHeader &entry = record(offset);
      const uint64_t position = entry.reply * segment + (offset - begin);
      const uint64_t size = IsOfRecords(entry.kind) ? size_of_entry(offset, end, position) : 0;
      if (size != 0) {
        whole[number].push_back(offset);
        taken = std::max(taken, position + size);
        oldest = std::min(oldest, uint64_t{entry.reply});
      }
      offset += size != 0 ? size : 8;
    }
  }
  const auto round_of = [&](uint64_t until) { return until == 0 ? 0 : (until - 1) / segment; };
  const uint64_t counted = header().taken.load(std::memory_order_relaxed);
  // The page may be damaged. Then records at the end may be missing, so the damaged number counts as a gap.
  uint64_t gaps = counted < taken || round_of(counted) > round_of(taken) + segments ? 1 : 0;
  if (counted > taken && (oldest == ~uint64_t{0} || round_of(counted) <= oldest + segments)) taken = counted;
  const uint64_t newest = round_of(taken);
  is_cut_ = newest >= segments;
  entries_.clear();
  // Takes the whole entries of a round, from this place in the segment on. Returns their end.
  const auto add = [&](uint64_t number, uint64_t round, uint64_t from, bool is_cut) {
    const uint64_t begin = kPage + number * segment;
    for (const uint64_t offset : whole[number]) {
      if (record(offset).reply != round || offset < begin + from) continue;
      gaps += !is_cut && offset != begin + from;
      is_cut = false;
      entries_.push_back(offset);
      from = offset - begin + record(offset).size;
    }
    return from;
  };
  const auto is_end = [&](uint64_t number, uint64_t round, uint64_t place) {
    return place == segment || ends_here(kPage + number * segment + place, round * segment + place);
  };
  for (uint64_t number = 0; number < segments && number <= newest; ++number) {
    const uint64_t round = newest - (newest - number) % segments;
    const uint64_t end = add(number, round, 0, false);
    if (round != newest) {
      gaps += !is_end(number, round, end);
      continue;
    }
    const uint64_t until = taken - newest * segment;
    gaps += end < until;
    if (newest < segments) continue;
    // After the newest entry comes the rest of the round before.
    const uint64_t of_old = add(number, newest - segments, until, true);
    gaps += of_old != until && !is_end(number, newest - segments, of_old);
  }
  return gaps;
}

void RunFile::look() {
  if (is_copy_) copy(0, kPage);
  const uint64_t segment = header().segment, capacity = header().capacity;
  const uint64_t taken = capacity == 0 ? 0 : header().taken.load(std::memory_order_acquire);
  // Entries before this are overwritten, or soon will be.
  const uint64_t round = taken == 0 ? 0 : (taken - 1) / segment;
  const uint64_t oldest = round - std::min(round, (capacity - 1) / segment);
  entries_.clear();
  std::vector<std::pair<uint64_t, uint64_t>> unread;
  unread_.emplace_back(looked_, taken);
  for (auto [from, to] : unread_) {
    for (from = std::max(from, oldest * segment); from < to;) {
      const uint64_t begin = kPage + from % capacity;
      const uint64_t end = std::min(begin + std::min(to - from, segment - from % segment), size_);
      if (is_copy_ && begin < end) copy(begin, end);
      uint64_t offset = begin, whole = begin; // `whole`: the end of the whole entries
      const auto position = [&, from](uint64_t at) { return from + (at - begin); };
      const auto skip = [&] {
        if (whole < offset) unread.emplace_back(position(whole), position(offset));
      };
      while (offset < end) {
        const uint64_t size = size_of_entry(offset, end, position(offset));
        if (size == 0 || !IsOfRecords(record(offset).kind)) {
          offset += 8;
          continue;
        }
        skip();
        entries_.push_back(offset);
        whole = offset += size;
      }
      skip();
      from += segment - from % segment;
    }
  }
  unread_ = std::move(unread);
  looked_ = taken;
}

Earlier::Program &Earlier::operator[](const ProgramKey &program) {
  const auto [known, is_new] = programs_.try_emplace(program);
  if (is_new) order_.push_back(program);
  return known->second;
}

void Earlier::keep_newest() {
  for (; order_.size() > kPrograms; order_.pop_front()) programs_.erase(order_.front());
}

ProgramKey Records::key_of(uint32_t file, const RecordHeader &record) const {
  return {files_[file]->job, NumberOfCall(record.token)};
}

Records::Records(std::vector<std::shared_ptr<RunFile>> files, Earlier *earlier) : files_(std::move(files)) {
  // The times of dispatches: in the first process that has the program, since each process has its own clock. If the
  // dispatch is not in the file any more, or was JAX's: the time of the program's first record.
  using Times = std::unordered_map<ProgramKey, double, HashOfProgram>;
  Times dispatched, first;
  for (uint32_t file = 0; file < files_.size(); ++file) {
    Times here;
    for (const uint64_t entry : files_[file]->entries()) {
      const RecordHeader &record = files_[file]->record(entry);
      if (record.kind == Kind::kDispatched) dispatched.emplace(key_of(file, record), record.time);
      if (!IsRecord(record.kind)) continue;
      const auto [known, is_new] = here.try_emplace(key_of(file, record), record.time);
      if (!is_new) known->second = std::min(known->second, record.time);
    }
    first.insert(here.begin(), here.end());
  }
  // By job and thread, then by number.
  std::map<ProgramKey, double> called(dispatched.begin(), dispatched.end());
  called.insert(first.begin(), first.end());
  const std::pair<const ProgramKey, double> *before = nullptr;
  for (auto &each : called) {
    auto &[program, time] = each;
    if (earlier != nullptr) {
      double &known = (*earlier)[program].called;
      time = known = known == 0 ? time : known;
    }
    // The thread's program before this one may have a later time, by another process's clock.
    if (before != nullptr && before->first.job == program.job && before->first.of >> 32 == program.of >> 32)
      time = std::max(time, before->second);
    before = &each;
  }
  size_t count = 0;
  for (const auto &file : files_) count += file->entries().size();
  places_.reserve(count);
  for (uint32_t file = 0; file < files_.size(); ++file)
    for (const uint64_t entry : files_[file]->entries()) {
      const RecordHeader &record = files_[file]->record(entry);
      if (!IsRecord(record.kind)) continue;
      const Token &token = record.token;
      const ProgramKey program = key_of(file, record);
      places_.push_back({called.at(program), program.job, program.of << kDomainBits | DomainOf(token),
                         uint64_t{token.phase} << 32 | token.index, file, record.device, entry});
    }
  const auto is_before = [](const Place &a, const Place &b) {
    return std::tie(a.program, a.job, a.domain, a.place, a.file, a.device) <
           std::tie(b.program, b.job, b.domain, b.place, b.file, b.device);
  };
  // The records of one device are in order.
  if (!std::is_sorted(places_.begin(), places_.end(), is_before))
    std::stable_sort(places_.begin(), places_.end(), is_before);
  places_.erase(
      std::unique(places_.begin(), places_.end(), [this](const Place &a, const Place &b) { return is_same(a, b); }),
      places_.end());
  Earlier none;
  if (earlier != nullptr) leave_out_copies_of(*earlier);
  leave_out_unordered_copies(earlier != nullptr ? *earlier : none);
  if (earlier != nullptr) earlier->keep_newest();
  put_behind_callers();
}

// The devices of a program reach its effects in one order, so a device at a later place has had all before.
void Records::leave_out_copies_of(Earlier &earlier) {
  constexpr uint32_t kAnyFile = ~uint32_t{0};
  const auto is_ordered = [](const RecordHeader &record) {
    return record.kind == Kind::kOrdered && !InRegion(record.token);
  };
  std::vector<std::pair<uint64_t *, uint64_t>> reached;
  places_.erase(std::remove_if(places_.begin(), places_.end(),
                               [&](const Place &place) {
                                 const RecordHeader &record = header(place);
                                 if (!is_ordered(record)) return false;
                                 auto &known = earlier[key_of(place.file, record)].reached;
                                 const uint64_t next = place.place + 1;
                                 uint64_t *const of_file = &known[{place.file, place.domain}];
                                 uint64_t *const of_all =
                                     (record.flags & kReplicated) != 0 ? &known[{kAnyFile, place.domain}] : of_file;
                                 if (std::max(*of_file, *of_all) >= next) return true;
                                 reached.emplace_back(of_file, next);
                                 reached.emplace_back(of_all, next);
                                 return false;
                               }),
                places_.end());
  for (const auto &[known, next] : reached) *known = std::max(*known, next);
}

// Unordered effects may share a token. So the n-th occurrence on a device or in a process is a copy of the n-th on an
// earlier one, if all devices or processes have the effect.
void Records::leave_out_unordered_copies(Earlier &earlier) {
  places_.erase(std::remove_if(places_.begin(), places_.end(),
                               [&](const Place &place) {
                                 const RecordHeader &record = header(place);
                                 if (record.kind != Kind::kUnordered || InRegion(record.token)) return false;
                                 Earlier::Program &program = earlier[key_of(place.file, record)];
                                 const auto own = std::pair(place.file, place.device);
                                 if ((record.flags & kReplicated) != 0)
                                   return program.reporters.try_emplace(record.site, own).first->second != own;
                                 if (files_.size() == 1) return false;
                                 std::string what(reinterpret_cast<const char *>(&record.site), sizeof record.site);
                                 what.append(reinterpret_cast<const char *>(&record.token), sizeof record.token);
                                 what.append(reinterpret_cast<const char *>(files_[place.file]->payload(place.entry)),
                                             record.payload_size);
                                 auto &of_files = program.counts[what];
                                 const uint64_t count = ++of_files[place.file];
                                 return std::any_of(of_files.begin(), of_files.find(place.file),
                                                    [&](const auto &each) { return each.second >= count; });
                               }),
                places_.end());
}

void Records::put_behind_callers() {
  // A callback, known by its record. A drain thread runs one callback at a time.
  using Callback = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, int32_t>;
  const auto key = [](uint32_t file, const RecordHeader &of) {
    return Callback(file, of.token.stream, of.token.epoch, of.token.phase, of.token.index, DeviceOf(of));
  };
  struct Run {
    Callback callback;
    size_t number; // each lane of a record is a run of its own
  };
  std::map<std::pair<uint32_t, uint64_t>, Run> called_by;               // by file and program
  std::map<std::pair<uint32_t, uint32_t>, Run> running;                 // by file and thread
  std::map<std::pair<uint32_t, uint32_t>, std::vector<uint64_t>> ahead; // programs whose callback is not known yet
  size_t functions = 0;
  for (const Event &event : events()) {
    if (event.header.kind == Kind::kDispatched) {
      const auto thread = std::pair(event.file, ThreadOf(event.header.token));
      const uint64_t program = NumberOfCall(event.header.token);
      if (const auto caller = running.find(thread); caller != running.end())
        called_by.emplace(std::pair(event.file, program), caller->second);
      else
        ahead[thread].push_back(program);
    } else if ((event.header.kind == Kind::kBegun || event.header.kind == Kind::kDone) && !event.text.empty()) {
      char *end = nullptr;
      const auto number = static_cast<uint32_t>(std::strtoul(event.text.c_str(), &end, 10));
      const std::pair thread(event.file, number);
      running.erase(thread);
      if (event.header.kind == Kind::kDone) continue;
      const Run run{key(event.file, event.header), functions++};
      running.emplace(thread, run);
      if (*end == '\0') continue;
      // The done of an asynchronous callback, which has a thread of its own.
      for (const uint64_t program : ahead[thread]) called_by.emplace(std::pair(event.file, program), run);
    }
  }
  if (called_by.empty()) return;
  std::vector<Place> outer;
  std::map<Callback, std::map<size_t, std::vector<Place>>> inner;
  for (const Place &place : places_) {
    const auto caller = called_by.find({place.file, NumberOfCall(header(place).token)});
    (caller == called_by.end() ? outer : inner[caller->second.callback][caller->second.number]).push_back(place);
  }
  places_.clear();
  // A stack, since called programs may call back.
  std::vector<Place> left(outer.rbegin(), outer.rend());
  while (!left.empty()) {
    const Place place = left.back();
    left.pop_back();
    places_.push_back(place);
    const auto behind = inner.find(key(place.file, header(place)));
    if (behind == inner.end()) continue;
    for (auto run = behind->second.rbegin(); run != behind->second.rend(); ++run)
      left.insert(left.end(), run->second.rbegin(), run->second.rend());
    inner.erase(behind);
  }
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>> kept;
  const auto token = [this](const Callback &of) {
    const uint32_t job = files_[std::get<0>(of)]->job;
    return std::tuple(job, std::get<1>(of), std::get<2>(of), std::get<3>(of), std::get<4>(of));
  };
  for (const Place &place : outer) kept.insert(token(key(place.file, header(place))));
  for (const auto &[callback, runs] : inner) // callbacks that are copies, or not in the file any more
    for (const auto &[number, places] : runs)
      if (kept.count(token(callback)) == 0) places_.insert(places_.end(), places.begin(), places.end());
}

// True if both records are of one value that all devices or processes have.
bool Records::is_same(const Place &a, const Place &b) const {
  if (a.place != b.place || a.domain != b.domain || a.program != b.program || a.job != b.job) return false;
  const RecordHeader &one = header(a), &other = header(b);
  if (one.site != other.site || one.kind != Kind::kOrdered || InRegion(one.token)) return false;
  if (a.file == b.file || (one.flags & other.flags & kReplicated) != 0) return true; // devices count equally there
  return a.file != b.file && one.payload_size == other.payload_size &&
         std::memcmp(files_[a.file]->payload(a.entry), files_[b.file]->payload(b.entry), one.payload_size) == 0;
}

Records Records::select(const std::optional<std::vector<uint64_t>> &sites, const std::optional<Devices> &devices,
                        const std::optional<std::vector<uint32_t>> &files, double since) const {
  const auto has = [](const auto &some, const auto &one) {
    return !some || std::find(some->begin(), some->end(), one) != some->end();
  };
  Records selected({});
  selected.files_ = files_;
  selected.places_.reserve(places_.size());
  std::unordered_set<uint64_t> of;
  if (sites) of.insert(sites->begin(), sites->end());
  for (const Place &place : places_) {
    const RecordHeader &record = header(place);
    if ((sites && of.count(record.site) == 0) || record.time < since) continue;
    if (has(devices, std::pair(place.file, DeviceOf(record))) && has(files, place.file))
      selected.places_.push_back(place);
  }
  return selected;
}

Records Records::last(size_t count) const {
  Records found({});
  found.files_ = files_;
  found.places_.assign(places_.end() - static_cast<ptrdiff_t>(std::min(count, places_.size())), places_.end());
  return found;
}

Records Records::newest() const {
  Records found({});
  found.files_ = files_;
  for (uint32_t file = 0; file < files_.size(); ++file) {
    std::map<std::pair<uint32_t, int32_t>, uint64_t> newest; // by thread and device
    for (const uint64_t entry : files_[file]->entries()) {
      const RecordHeader &record = files_[file]->record(entry);
      if (!IsRecord(record.kind)) continue;
      const auto [known, is_new] = newest.emplace(std::pair(ThreadOf(record.token), record.device), entry);
      if (!is_new && files_[file]->record(known->second).time <= record.time) known->second = entry;
    }
    for (const auto &[of, entry] : newest) found.places_.push_back({0, 0, 0, 0, file, of.second, entry});
  }
  return found;
}

std::vector<uint32_t> Records::read(size_t first, size_t last, const std::function<char *(size_t)> &allocate) const {
  last = std::min(last, places_.size());
  size_t size = 0;
  for (size_t i = first; i < last; ++i) size += sizeof(RecordHeader) + header(places_[i]).payload_size;
  std::vector<uint32_t> files;
  char *to = allocate(size);
  for (size_t i = first; i < last; ++i) {
    RecordHeader record = header(places_[i]);
    record.device = DeviceOf(record);
    std::memcpy(to, &record, sizeof record);
    std::memcpy(to += sizeof record, files_[places_[i].file]->payload(places_[i].entry), record.payload_size);
    to += record.payload_size;
    files.push_back(places_[i].file);
  }
  return files;
}

std::map<std::pair<uint32_t, uint64_t>, Records::Count> Records::count() const {
  std::map<std::pair<uint32_t, uint64_t>, Count> counts;
  for (const Place &place : places_) {
    const RecordHeader &record = header(place);
    Count &count = counts[{place.file, record.site}];
    count.first = count.count == 0 ? record.time : std::min(count.first, record.time);
    count.last = std::max(count.last, record.time);
    ++count.count;
  }
  return counts;
}

std::vector<Records::Event> Records::events() const {
  std::vector<Event> events;
  for (uint32_t file = 0; file < files_.size(); ++file)
    for (const uint64_t entry : files_[file]->entries()) {
      const RecordHeader &record = files_[file]->record(entry);
      if (IsRecord(record.kind)) continue;
      const auto *text = reinterpret_cast<const char *>(files_[file]->payload(entry));
      const bool is_text = record.kind >= Kind::kDispatched;
      events.push_back({file, record, is_text ? std::string(text, record.payload_size) : std::string()});
      std::string &said = events.back().text;
      said.resize(said.find('\0') == std::string::npos ? said.size() : said.find('\0')); // the text is padded
    }
  std::stable_sort(events.begin(), events.end(),
                   [](const Event &a, const Event &b) { return a.header.time < b.header.time; });
  return events;
}

} // namespace effects::runs
