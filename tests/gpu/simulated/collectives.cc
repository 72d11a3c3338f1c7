// What XLA uses of NCCL, on the simulated machine: the streams of a group's devices meet, and each has its result.
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

extern "C" {
// Of the simulated driver.
void *simulated_memory(uint64_t address, size_t size);
void simulated_put(void *stream, void (*work)(void *), void *data);
int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemFree_v2(uint64_t address);
}

namespace {

using Result = int;
constexpr Result kSuccess = 0, kInvalidArgument = 4;
enum Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16 };
enum Operation { kSum, kProduct, kMaximum, kMinimum };
struct UniqueId {
  char text[128];
};

std::mutex mutex; // guards all below
std::condition_variable changed;

struct Meeting {
  std::vector<const void *> given;
  std::vector<void *> results;
  size_t come = 0, gone = 0;
  bool is_computed = false;
};
struct Group {
  size_t size;
  size_t joined = 0;
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings; // by their number
  // Of one that sends and one that receives, by their number.
  std::map<std::pair<int, int>, std::map<uint64_t, std::vector<char>>> sent;
  // Colors and keys of each rank, where groups are made of this one.
  std::map<uint64_t, std::map<int, std::pair<int, int>>> splits;
};
auto &groups = *new std::map<std::string, std::shared_ptr<Group>>;

struct Communicator {
  std::shared_ptr<Group> group;
  int rank;
  uint64_t meetings = 0, splits = 0;
  std::map<int, uint64_t> sends, receives;
};

// Between the calls that begin and end a group what is received comes behind what is sent.
thread_local int depth = 0;
thread_local std::vector<std::function<void()>> receives;

size_t SizeOf(int type) {
  return type == kInt8 || type == kUint8 || type > kBfloat16     ? 1
         : type == kFloat16 || type == kBfloat16                 ? 2
         : type == kInt64 || type == kUint64 || type == kFloat64 ? 8
                                                                 : 4;
}

void Put(void *stream, std::function<void()> work) {
  simulated_put(
      stream,
      [](void *data) {
        const std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()> *>(data));
        (*work)();
      },
      new std::function<void()>(std::move(work)));
}

char *Real(const void *address, size_t size) {
  return static_cast<char *>(simulated_memory(reinterpret_cast<uint64_t>(address), size));
}

template <typename T>
void Combine(T *into, const char *from, size_t count, int operation) {
  for (size_t i = 0; i < count; ++i) {
    T other;
    std::memcpy(&other, from + i * sizeof other, sizeof other);
    into[i] = static_cast<T>(operation == kSum       ? into[i] + other
                             : operation == kProduct ? into[i] * other
                             : operation == kMaximum ? std::max(into[i], other)
                                                     : std::min(into[i], other));
  }
}

// What all have given, combined; each has so many values.
std::vector<char> Reduced(const Meeting &meeting, size_t count, int type, int operation) {
  const size_t size = count * SizeOf(type);
  const char *const first = Real(meeting.given[0], size);
  std::vector<char> all(first, first + size);
  const auto combine = [&](auto kind) {
    for (size_t i = 1; i < meeting.given.size(); ++i)
      Combine(reinterpret_cast<decltype(kind) *>(all.data()), Real(meeting.given[i], size), count, operation);
  };
  switch (type) {
  case kInt8:
    combine(int8_t{});
    break;
  case kUint8:
    combine(uint8_t{});
    break;
  case kInt32:
    combine(int32_t{});
    break;
  case kUint32:
    combine(uint32_t{});
    break;
  case kInt64:
    combine(int64_t{});
    break;
  case kUint64:
    combine(uint64_t{});
    break;
  case kFloat32:
    combine(float{});
    break;
  case kFloat64:
    combine(double{});
    break;
  default:
    std::fprintf(stderr, "The simulated GPU: values of type %d cannot be reduced.\n", type);
  }
  return all;
}

// All meet; the last one computes from what all have given, since results may be in the same memory.
Result Meet(Communicator *communicator, const void *given, void *result, void *stream,
            std::function<void(const Meeting &)> compute) {
  Put(stream, [=, number = communicator->meetings++] {
    Group &group = *communicator->group;
    std::unique_lock lock(mutex);
    auto &known = group.meetings[number];
    if (known == nullptr) {
      known = std::make_shared<Meeting>();
      known->given.resize(group.size);
      known->results.resize(group.size);
    }
    const std::shared_ptr<Meeting> meeting = known;
    meeting->given[static_cast<size_t>(communicator->rank)] = given;
    meeting->results[static_cast<size_t>(communicator->rank)] = result;
    if (++meeting->come == group.size) {
      compute(*meeting);
      meeting->is_computed = true;
      group.meetings.erase(number);
      changed.notify_all();
    }
    changed.wait(lock, [&] { return meeting->is_computed; });
  });
  return kSuccess;
}

// Waits until all are there.
Communicator *Join(const std::string &name, int size, int rank) {
  std::unique_lock lock(mutex);
  auto &known = groups[name];
  if (known == nullptr) known = std::make_shared<Group>(Group{static_cast<size_t>(size), 0, {}, {}, {}});
  const std::shared_ptr<Group> group = known;
  ++group->joined;
  changed.notify_all();
  changed.wait(lock, [&] { return group->joined == group->size; });
  return new Communicator{group, rank, 0, 0, {}, {}};
}

} // namespace

extern "C" {

Result ncclGetVersion(int *version) {
  *version = 22703;
  return kSuccess;
}
Result ncclGetUniqueId(UniqueId *id) {
  static int last = 0;
  std::lock_guard lock(mutex);
  *id = {};
  std::snprintf(id->text, sizeof id->text, "simulated %d", ++last);
  return kSuccess;
}
Result ncclCommInitRankConfig(Communicator **made, int size, UniqueId id, int rank, void *) {
  *made = Join(id.text, size, rank);
  return kSuccess;
}
Result ncclCommInitRank(Communicator **made, int size, UniqueId id, int rank) {
  return ncclCommInitRankConfig(made, size, id, rank, nullptr);
}
Result ncclCommInitRankScalable(Communicator **made, int size, int rank, int, const UniqueId *id, void *) {
  return ncclCommInitRankConfig(made, size, *id, rank, nullptr);
}
Result ncclCommSplit(Communicator *communicator, int color, int key, Communicator **made, void *) {
  std::unique_lock lock(mutex);
  const uint64_t number = communicator->splits++;
  auto &all = communicator->group->splits[number];
  all[communicator->rank] = {color, key};
  changed.notify_all();
  changed.wait(lock, [&] { return all.size() == communicator->group->size; });
  *made = nullptr;
  if (color < 0) return kSuccess;
  int size = 0, rank = 0;
  for (const auto &[other, said] : all) {
    if (said.first != color) continue;
    ++size;
    rank += said.second < key || (said.second == key && other < communicator->rank);
  }
  char name[100];
  std::snprintf(name, sizeof name, "%p %d %d", static_cast<void *>(communicator->group.get()), static_cast<int>(number),
                color);
  lock.unlock();
  *made = Join(name, size, rank);
  return kSuccess;
}
Result ncclCommCount(const Communicator *communicator, int *count) {
  *count = static_cast<int>(communicator->group->size);
  return kSuccess;
}
Result ncclCommUserRank(const Communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return kSuccess;
}
Result ncclCommGetAsyncError(const Communicator *, Result *error) {
  *error = kSuccess;
  return kSuccess;
}
const char *ncclGetErrorString(Result) { return "an error of the simulated GPU"; }
const char *ncclGetLastError(const Communicator *) { return "an error of the simulated GPU"; }
Result ncclCommDestroy(Communicator *) { return kSuccess; }
Result ncclCommAbort(Communicator *) { return kSuccess; }
Result ncclCommFinalize(Communicator *) { return kSuccess; }
Result ncclCommRegister(const Communicator *communicator, void *, size_t, void **handle) {
  *handle = const_cast<Communicator *>(communicator);
  return kSuccess;
}
Result ncclCommDeregister(const Communicator *, void *) { return kSuccess; }
Result ncclMemAlloc(uint64_t *address, size_t size) { return cuMemAlloc_v2(address, size); }
Result ncclMemFree(uint64_t address) { return cuMemFree_v2(address); }
Result ncclGroupStart() {
  ++depth;
  return kSuccess;
}
Result ncclGroupEnd() {
  if (--depth > 0) return kSuccess;
  for (const auto &receive : std::exchange(receives, {})) receive();
  return kSuccess;
}

Result ncclAllReduce(const void *given, void *result, size_t count, int type, int operation, Communicator *communicator,
                     void *stream) {
  if (operation > kMinimum) return kInvalidArgument;
  return Meet(communicator, given, result, stream, [=](const Meeting &meeting) {
    const std::vector<char> all = Reduced(meeting, count, type, operation);
    for (const void *to : meeting.results) std::copy(all.begin(), all.end(), Real(to, all.size()));
  });
}
Result ncclReduceScatter(const void *given, void *result, size_t count, int type, int operation,
                         Communicator *communicator, void *stream) {
  if (operation > kMinimum) return kInvalidArgument;
  return Meet(communicator, given, result, stream, [=](const Meeting &meeting) {
    const size_t size = count * SizeOf(type);
    const std::vector<char> all = Reduced(meeting, count * meeting.results.size(), type, operation);
    for (size_t i = 0; i < meeting.results.size(); ++i)
      std::memcpy(Real(meeting.results[i], size), all.data() + i * size, size);
  });
}
Result ncclAllGather(const void *given, void *result, size_t count, int type, Communicator *communicator,
                     void *stream) {
  return Meet(communicator, given, result, stream, [=](const Meeting &meeting) {
    const size_t size = count * SizeOf(type);
    std::vector<char> all;
    for (const void *from : meeting.given) all.insert(all.end(), Real(from, size), Real(from, size) + size);
    for (const void *to : meeting.results) std::copy(all.begin(), all.end(), Real(to, all.size()));
  });
}
Result ncclBroadcast(const void *given, void *result, size_t count, int type, int root, Communicator *communicator,
                     void *stream) {
  return Meet(communicator, given, result, stream, [=](const Meeting &meeting) {
    const size_t size = count * SizeOf(type);
    const char *const from = Real(meeting.given[static_cast<size_t>(root)], size);
    const std::vector<char> value(from, from + size);
    for (const void *to : meeting.results) std::copy(value.begin(), value.end(), Real(to, size));
  });
}
Result ncclAlltoAll(const void *given, void *result, size_t count, int type, Communicator *communicator, void *stream) {
  return Meet(communicator, given, result, stream, [=](const Meeting &meeting) {
    const size_t size = count * SizeOf(type), ranks = meeting.given.size();
    std::vector<std::vector<char>> all;
    for (const void *from : meeting.given)
      all.emplace_back(Real(from, size * ranks), Real(from, size * ranks) + size * ranks);
    for (size_t to = 0; to < ranks; ++to)
      for (size_t from = 0; from < ranks; ++from)
        std::memcpy(Real(meeting.results[to], size * ranks) + from * size, all[from].data() + to * size, size);
  });
}
Result ncclSend(const void *value, size_t count, int type, int peer, Communicator *communicator, void *stream) {
  Put(stream, [=, size = count * SizeOf(type), number = communicator->sends[peer]++] {
    std::lock_guard lock(mutex);
    const char *const from = Real(value, size);
    communicator->group->sent[{communicator->rank, peer}][number].assign(from, from + size);
    changed.notify_all();
  });
  return kSuccess;
}
Result ncclRecv(void *result, size_t count, int type, int peer, Communicator *communicator, void *stream) {
  std::function<void()> receive = [=, size = count * SizeOf(type), number = communicator->receives[peer]++] {
    Put(stream, [=] {
      std::unique_lock lock(mutex);
      auto &sent = communicator->group->sent[{peer, communicator->rank}];
      changed.wait(lock, [&] { return sent.count(number) != 0; });
      std::memcpy(Real(result, size), sent[number].data(), size);
      sent.erase(number);
    });
  };
  if (depth > 0)
    receives.push_back(std::move(receive));
  else
    receive();
  return kSuccess;
}

} // extern "C"
