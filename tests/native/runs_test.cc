// Run files: what threads write is read whole and once, and nothing else is, whatever the file has become.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "check.h"
#include "extensions/runs/native/reader.h"
#include "extensions/runs/native/writer.h"

namespace effects::runs_test {
namespace {

using check::MakeToken;
using check::Random;
using runs::RunFile;
using runs::Writer;

// A file that is gone at the end of its test.
struct Path {
  Path() {
    char name[] = "/tmp/effects-run-XXXXXX";
    const int file = ::mkstemp(name);
    CHECK(file >= 0);
    ::close(file);
    path = name;
  }
  ~Path() {
    std::remove(path.c_str());
    std::remove((path + ".1").c_str()); // an earlier run
  }
  std::string path;
};

// A record whose payload can be told from its token: so many times the index.
void Take(Writer &writer, uint32_t thread, uint32_t index) {
  const std::vector<uint64_t> payload(1 + index % 7, uint64_t{thread} << 32 | index);
  RecordHeader header{};
  header.kind = Kind::kOrdered;
  header.site = 7;
  header.token = MakeToken(thread, 0, 0, index);
  header.payload_size = payload.size() * sizeof payload[0];
  const Span span{payload.data(), header.payload_size};
  writer.take(header, &span, 1);
}

// The (thread, index) of the records that were found, each of which must be whole.
std::vector<std::pair<uint32_t, uint32_t>> Found(const RunFile &file) {
  std::vector<std::pair<uint32_t, uint32_t>> found;
  for (const uint64_t entry : file.entries()) {
    const RecordHeader &record = file.record(entry);
    const uint32_t thread = ThreadOf(record.token), index = record.token.index;
    CHECK_EQ(record.payload_size, sizeof(uint64_t) * (1 + index % 7));
    for (size_t i = 0; i < record.payload_size; i += sizeof(uint64_t)) {
      uint64_t value;
      std::memcpy(&value, file.payload(entry) + i, sizeof value);
      CHECK_EQ(value, uint64_t{thread} << 32 | index);
    }
    found.emplace_back(thread, index);
  }
  return found;
}

// Headers and payloads.
std::string Bytes(const runs::Records &records) {
  std::string bytes;
  const auto files = records.read(0, records.size(), [&](size_t size) {
    bytes.resize(size);
    return bytes.data();
  });
  CHECK_EQ(files.size(), records.size());
  return bytes;
}

// Those of a file.
std::vector<std::pair<uint32_t, uint32_t>> Read(const std::string &path) {
  auto file = std::make_shared<RunFile>(path);
  file->scan();
  const auto read = Found(*file);
  file->described();
  const runs::Records records({file});
  CHECK_EQ(records.size(), read.size());
  Bytes(records);
  records.newest();
  records.events();
  file->look();
  return read;
}

// Threads append while the file is closed under them: what is in it is whole, once, and in each thread's order.
TEST(test_threads_append_while_the_file_is_closed) {
  for (int turn = 0; turn < 20; ++turn) {
    Path path;
    Writer &writer = runs::writer();
    CHECK(writer.open(path.path, 1 << 20));
    std::atomic<int> started{0};
    std::vector<std::thread> threads;
    for (uint32_t thread = 1; thread <= 3; ++thread)
      threads.emplace_back([&, thread] {
        for (uint32_t index = 0; index < 2000; ++index) {
          Take(writer, thread, index);
          started += index == 100;
        }
      });
    while (started != 3) std::this_thread::yield();
    writer.close();
    for (std::thread &each : threads) each.join();
    std::array<uint32_t, 4> next{};
    for (const auto &[thread, index] : Read(path.path)) CHECK_EQ(index, next[thread]++);
    for (uint32_t thread = 1; thread <= 3; ++thread) CHECK(next[thread] > 100);
  }
}

// A reader that looks while threads write sees each record once at most, whole, and in each thread's order; and all of
// them, if the file has room.
TEST(test_looks_while_threads_write) {
  // A full file is written by one thread here: of several, one that was stopped would write where others do.
  for (const auto &[size, num_threads] : {std::pair(1 << 22, 3), std::pair(1 << 16, 1)}) {
    Path path;
    Writer &writer = runs::writer();
    CHECK(writer.open(path.path, static_cast<uint64_t>(size)));
    std::atomic<int> running{num_threads};
    std::vector<std::thread> threads;
    for (uint32_t thread = 1; thread <= static_cast<uint32_t>(num_threads); ++thread)
      threads.emplace_back([&, thread] {
        for (uint32_t index = 0; index < 5000; ++index) Take(writer, thread, index);
        --running;
      });
    RunFile file(path.path);
    std::array<uint32_t, 4> next{}, count{};
    for (bool is_last = false; !is_last;) {
      is_last = running == 0;
      file.look();
      std::array<std::set<uint32_t>, 4> indices; // what is whole later comes behind
      for (const auto &[thread, index] : Found(file)) CHECK(indices[thread].insert(index).second);
      for (uint32_t thread = 1; thread <= 3; ++thread)
        for (const uint32_t index : indices[thread]) {
          CHECK(index >= next[thread]);
          next[thread] = index + 1;
          ++count[thread];
        }
    }
    for (std::thread &each : threads) each.join();
    writer.close();
    for (uint32_t thread = 1; thread <= 3 && num_threads == 3; ++thread) CHECK_EQ(count[thread], 5000u);
  }
}

// What was not whole at a look is looked at again.
TEST(test_what_is_whole_later_is_seen_then) {
  Path path;
  Writer &writer = runs::writer();
  CHECK(writer.open(path.path, 1 << 16));
  for (uint32_t index = 0; index < 3; ++index) Take(writer, 1, index);
  const int file = ::open(path.path.c_str(), O_RDWR);
  const off_t second = runs::kPage + sizeof(runs::EntryHeader) + sizeof(uint64_t);
  const uint64_t none = 0;
  uint64_t sum = 0;
  CHECK_EQ(::pread(file, &sum, sizeof sum, second), ssize_t{sizeof sum});
  CHECK_EQ(::pwrite(file, &none, sizeof none, second), ssize_t{sizeof none});
  RunFile reader(path.path);
  using All = std::vector<std::pair<uint32_t, uint32_t>>;
  reader.look();
  CHECK((Found(reader) == All{{1, 0}, {1, 2}}));
  reader.look();
  CHECK(Found(reader).empty());
  CHECK_EQ(::pwrite(file, &sum, sizeof sum, second), ssize_t{sizeof sum});
  Take(writer, 1, 3);
  reader.look();
  CHECK((Found(reader) == All{{1, 1}, {1, 3}}));
  ::close(file);
  writer.close();
}

// A device that is behind publishes what another had before a look: it comes once.
TEST(test_copies_between_looks_come_once) {
  Path path;
  Writer &writer = runs::writer();
  CHECK(writer.open(path.path, 1 << 20));
  const auto take = [&](uint32_t index, int32_t device) {
    RecordHeader header{};
    header.kind = Kind::kOrdered;
    header.flags = kReplicated;
    header.site = 7;
    header.device = device;
    header.token = MakeToken(1, 0, 0, index);
    writer.take(header, nullptr, 0);
  };
  auto file = std::make_shared<RunFile>(path.path);
  runs::Earlier earlier;
  const auto look = [&] {
    file->look();
    return runs::Records({file}, &earlier).size();
  };
  for (uint32_t index = 0; index < 10; ++index) take(index, 0);
  CHECK_EQ(look(), 10u);
  for (uint32_t index = 0; index < 12; ++index) take(index, 1);
  CHECK_EQ(look(), 2u);
  for (uint32_t index = 10; index < 13; ++index) take(index, 0);
  CHECK_EQ(look(), 1u);
  writer.close();
}

// A program has the place of its dispatch also where that was seen at an earlier look.
TEST(test_programs_come_in_the_order_of_their_dispatches_at_each_look) {
  Path path;
  Writer &writer = runs::writer();
  CHECK(writer.open(path.path, 1 << 20));
  const auto take = [&](Kind kind, uint32_t epoch, uint32_t index, double time) {
    RecordHeader header{};
    header.kind = kind;
    header.site = 7;
    header.token = MakeToken(1, 0, epoch, index);
    header.time = time;
    writer.take(header, nullptr, 0);
  };
  auto file = std::make_shared<RunFile>(path.path);
  runs::Earlier earlier;
  const auto look = [&] {
    file->look();
    const runs::Records records({file}, &earlier);
    const std::string bytes = Bytes(records);
    std::vector<uint32_t> epochs;
    for (size_t at = 0; at < bytes.size(); at += sizeof(RecordHeader)) {
      RecordHeader header;
      std::memcpy(&header, bytes.data() + at, sizeof header);
      epochs.push_back(header.token.epoch);
    }
    return epochs;
  };
  using Epochs = std::vector<uint32_t>;
  take(Kind::kDispatched, 1, 0, 1);
  CHECK(look().empty());
  take(Kind::kDispatched, 2, 0, 2);
  take(Kind::kOrdered, 2, 0, 3);
  take(Kind::kOrdered, 1, 0, 4);
  CHECK((look() == Epochs{1, 2}));
  take(Kind::kOrdered, 2, 1, 5);
  take(Kind::kOrdered, 1, 1, 6);
  CHECK((look() == Epochs{1, 2}));
  writer.close();
}

// A program that only one process has comes behind those that its thread has called before, though another process has
// come to them later.
TEST(test_programs_of_a_thread_stay_in_order_where_processes_drift) {
  Path paths[2];
  Writer &writer = runs::writer();
  std::vector<std::shared_ptr<RunFile>> files;
  for (uint32_t process = 0; process < 2; ++process) {
    CHECK(writer.open(paths[process].path, 1 << 16));
    for (uint32_t epoch = 1; epoch <= 1 + process; ++epoch)
      for (const Kind kind : {Kind::kDispatched, Kind::kUnordered}) {
        RecordHeader header{};
        header.kind = kind;
        header.site = 7 + process;
        header.token = MakeToken(1, 0, epoch, 0);
        header.time = process == 0 ? 10 : epoch;
        writer.take(header, nullptr, 0);
      }
    writer.close();
    files.push_back(std::make_shared<RunFile>(paths[process].path));
    files.back()->scan();
  }
  const std::string bytes = Bytes(runs::Records(files));
  std::vector<std::pair<uint32_t, uint64_t>> found;
  for (size_t at = 0; at < bytes.size(); at += sizeof(RecordHeader)) {
    RecordHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    found.emplace_back(header.token.epoch, header.site);
  }
  CHECK((found == std::vector<std::pair<uint32_t, uint64_t>>{{1, 7}, {1, 8}, {2, 8}}));
}

// A reader keeps its file when another run is recorded into one of its name.
TEST(test_reader_keeps_its_file) {
  Path path;
  Writer &writer = runs::writer();
  const auto record = [&](uint32_t thread) {
    CHECK(writer.open(path.path, 1 << 16));
    Take(writer, thread, 0);
    writer.close();
  };
  record(1);
  RunFile before(path.path);
  record(2);
  before.scan();
  CHECK_EQ(Found(before)[0].first, 1u);
  CHECK_EQ(Read(path.path)[0].first, 2u);
}

// Once the file is full, the newest half of it is there at least.
TEST(test_full_file_keeps_the_newest) {
  Path path;
  Writer &writer = runs::writer();
  CHECK(writer.open(path.path, 1 << 16));
  for (uint32_t index = 0; index < 5000; ++index) Take(writer, 1, index);
  writer.close();
  std::set<uint32_t> read;
  for (const auto &[thread, index] : Read(path.path)) CHECK(read.insert(index).second);
  for (uint32_t index = 4700; index < 5000; ++index) CHECK(read.count(index) == 1);
}

// However often it was filled, what is there are the newest records without a hole, and nothing of earlier rounds.
TEST(test_file_has_no_hole_however_often_it_was_filled) {
  Path path;
  Writer &writer = runs::writer();
  for (uint32_t count = 1; count < 700; count += 1 + count / 100) {
    CHECK(writer.open(path.path, 2 * runs::kPage));
    for (uint32_t index = 0; index < count; ++index) Take(writer, 1, index * 3 + index / 40);
    RunFile open(path.path);
    CHECK_EQ(open.scan(), 0u);
    writer.close();
    RunFile file(path.path);
    CHECK_EQ(file.scan(), 0u);
    std::set<uint32_t> indices;
    for (const auto &[thread, index] : Found(file)) CHECK(indices.insert(index).second);
    CHECK_EQ(open.entries().size(), indices.size());
    uint32_t index = count;
    for (auto found = indices.rbegin(); found != indices.rend(); ++found)
      --index, CHECK_EQ(*found, index * 3 + index / 40);
    CHECK(index == 0 || count - index > 25);
    std::remove(path.path.c_str());
  }
}

// A thread that is stopped while others go around a small file writes over a record of a later round, wholly or partly:
// that is counted, wherever it lies, and what the thread wrote is not among the newest.
TEST(test_what_a_stopped_thread_overwrites_is_counted) {
  constexpr uint64_t kSize = sizeof(runs::EntryHeader) + sizeof(uint64_t), kInSegment = runs::kPage / kSize;
  for (const uint64_t place : {uint64_t{0}, uint64_t{10}, kInSegment - 1})
    for (const uint64_t size : {kSize, sizeof(runs::EntryHeader), uint64_t{24}}) {
      Path path;
      Writer &writer = runs::writer();
      CHECK(writer.open(path.path, 2 * runs::kPage));
      const auto take = [&](uint32_t count) {
        for (uint32_t index = 0; index < count; ++index) Take(writer, 1, 7 * index);
      };
      take(kInSegment);
      const int file = ::open(path.path.c_str(), O_RDWR);
      std::array<std::byte, kSize> late{};
      const auto at = static_cast<off_t>(runs::kPage + place * kSize);
      CHECK_EQ(::pread(file, late.data(), size, at), static_cast<ssize_t>(size));
      take(2 * kInSegment + 5); // in the other segment now
      CHECK_EQ(::pwrite(file, late.data(), size, at), static_cast<ssize_t>(size));
      ::close(file);
      writer.close();
      RunFile read(path.path);
      CHECK_EQ(read.scan(), 1u);
      // The newest segment has five of the newest round; behind them is the round before.
      CHECK_EQ(read.entries().size(), kInSegment - 1 + 5 + kInSegment - 5);
    }
}

// Thousands of damaged files: none is read as anything but records that were written, or an error.
TEST(test_damaged_files) {
  Path path;
  Writer &writer = runs::writer();
  CHECK(writer.open(path.path, 2 * runs::kPage));
  CHECK(writer.describe(runs::kSite, 7, "{\"a site\": 1}"));
  for (uint32_t index = 0; index < 200; ++index) Take(writer, 1, index);
  writer.close();
  std::ifstream in(path.path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  const size_t count = Read(path.path).size();
  CHECK(count > 20);
  Random random(1);
  size_t errors = 0, fewer = 0;
  for (uint64_t turn = 0; turn < check::Times(1000); ++turn) {
    check::seed = turn;
    std::string damaged = whole;
    for (uint64_t i = 0; i <= random.below(3); ++i) {
      const size_t at =
          random.below(2) == 0 ? random.below(72) : runs::kPage + random.below(whole.size() - runs::kPage);
      if (random.below(4) == 0)
        damaged.replace(at, std::min<size_t>(8, damaged.size() - at),
                        std::string(8, static_cast<char>(random.below(256))));
      else
        damaged[at] = static_cast<char>(damaged[at] ^ 1 << random.below(8));
    }
    if (random.below(8) == 0) damaged.resize(random.below(damaged.size()));
    {
      std::ofstream out(path.path, std::ios::binary | std::ios::trunc);
      out << damaged;
    }
    try {
      const size_t read = Read(path.path).size();
      CHECK(read <= count);
      fewer += read < count;
    } catch (const std::exception &) {
      ++errors;
    }
  }
  CHECK(errors > 50 && fewer > 50);
}

} // namespace
} // namespace effects::runs_test
