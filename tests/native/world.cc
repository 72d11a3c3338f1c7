#include "world.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <sstream>

namespace effects {

using check::MakeToken;
using check::Random;

std::string BytesOf(const Token &token, size_t size) {
  Random random(uint64_t{token.stream} << 40 ^ uint64_t{token.epoch} << 20 ^ token.index);
  std::string bytes;
  while (bytes.size() < size) bytes += static_cast<char>(random.next());
  return bytes;
}

bool Publish(Publisher &publisher, Kind kind, const Token &token, size_t size, uint16_t flags, uint32_t reply) {
  const std::string bytes = BytesOf(token, size);
  const Preface preface{size, token.stream, token.epoch, token.index, static_cast<uint32_t>(kind)};
  const Span spans[] = {{&preface, sizeof preface}, {bytes.data(), bytes.size()}};
  return publisher.publish(kind, kSite, token, kDevice, spans, 2, flags, reply);
}

void Close(Publisher &publisher, uint32_t thread, uint32_t epoch,
           const std::vector<std::pair<uint32_t, uint32_t>> &finals) {
  std::vector<Token> tokens;
  for (auto &[domain, index] : finals) tokens.push_back(MakeToken(thread, domain, epoch, index));
  const Span span{tokens.data(), tokens.size() * sizeof(Token)};
  CHECK(publisher.publish(Kind::kClose, 0, tokens.at(0), 0, &span, 1));
}

Plan LinePlan() {
  Plan plan;
  plan.pieces.resize(6);
  const std::pair<Scalar, size_t> fields[] = {{Scalar::kUint64, offsetof(Preface, size)},
                                              {Scalar::kUint32, offsetof(Preface, stream)},
                                              {Scalar::kUint32, offsetof(Preface, epoch)},
                                              {Scalar::kUint32, offsetof(Preface, index)},
                                              {Scalar::kUint32, offsetof(Preface, kind)}};
  for (size_t i = 0; i < 5; ++i) {
    plan.pieces[i].literal = i == 0 ? std::string(kLine) + " " : " ";
    plan.pieces[i].has_field = true;
    plan.pieces[i].type = fields[i].first;
    plan.pieces[i].offset = fields[i].second;
  }
  plan.pieces[5].literal = "\n";
  return plan;
}

void ForEachLine(const Item &item, const std::function<void(const Preface &)> &visit) {
  CHECK(item.kind == ItemKind::kText);
  CHECK(!item.has_callbacks && item.reply == 0);
  uint64_t count = 0;
  std::istringstream lines(item.data);
  for (std::string line; std::getline(lines, line); ++count) {
    CHECK(line.compare(0, sizeof kLine - 1, kLine) == 0);
    std::istringstream fields(line.substr(sizeof kLine - 1));
    Preface preface{};
    CHECK(fields >> preface.size >> preface.stream >> preface.epoch >> preface.index >> preface.kind);
    visit(preface);
  }
  CHECK_EQ(item.count, count);
  uint64_t of_runs = 0;
  for (const TextRun &run : item.runs) of_runs += run.count;
  CHECK_EQ(of_runs, count);
  CHECK_EQ(item.runs.back().end, item.data.size());
}

void ForEachRecord(const Item &item, const std::function<void(const RecordHeader &, const std::string &)> &visit) {
  CHECK(item.kind != ItemKind::kText);
  if (item.kind == ItemKind::kLarge) {
    CHECK_EQ(item.count, uint64_t{1});
    RecordHeader header;
    CHECK_EQ(item.data.size(), sizeof header);
    std::memcpy(&header, item.data.data(), sizeof header);
    CHECK_EQ(header.payload_size, item.size);
    visit(header, std::string(reinterpret_cast<const char *>(item.block.get()), item.size));
    return;
  }
  uint64_t count = 0;
  for (size_t at = 0; at < item.data.size(); ++count) {
    RecordHeader header;
    CHECK(at + sizeof header <= item.data.size());
    std::memcpy(&header, item.data.data() + at, sizeof header);
    at += sizeof header;
    CHECK(at + header.payload_size <= item.data.size());
    visit(header, item.data.substr(at, header.payload_size));
    at += header.payload_size;
  }
  CHECK_EQ(item.count, count);
}

std::vector<std::string> Items(const Batch &batch) {
  std::vector<std::string> items;
  for (const Item &item : batch.items) {
    const std::string of = item.info.thread == kPlainThread ? "plain" : std::to_string(item.info.thread);
    std::string one = of + "." + std::to_string(item.info.epoch) + ":";
    const auto add = [&](const char *marks, uint32_t index) {
      one += std::string(one.back() == ':' ? "" : ",") + marks + std::to_string(index);
    };
    if (item.kind == ItemKind::kText) {
      CHECK(!item.has_callbacks && item.reply == 0);
      if (item.data.compare(0, sizeof kLine - 1, kLine) == 0)
        ForEachLine(item, [&](const Preface &preface) {
          add(static_cast<Kind>(preface.kind) == Kind::kUnordered ? "u" : "", preface.index);
        });
      else
        one += "#" + std::to_string(item.count);
      items.push_back("text " + one);
      continue;
    }
    CHECK_EQ(item.info.thread, batch.run);
    bool calls = false;
    uint32_t asked = 0;
    ForEachRecord(item, [&](const RecordHeader &header, const std::string &) {
      CHECK_EQ(ThreadOf(header.token), item.info.thread);
      CHECK_EQ(asked, uint32_t{0}); // only the last of an item is
      calls = calls || (header.flags & kCallback) != 0;
      asked = header.reply;
      const std::string marks =
          std::string((header.flags & kCallback) != 0 ? "c" : "") + (header.kind == Kind::kUnordered ? "u" : "");
      add(marks.c_str(), header.token.index);
    });
    CHECK_EQ(item.has_callbacks, calls);
    CHECK_EQ(item.reply, asked);
    items.push_back((item.kind == ItemKind::kLarge ? "large " : "") + one);
  }
  return items;
}

std::vector<std::string> Ends(const Batch &batch) {
  std::vector<std::string> ends;
  for (const Finished &one : batch.finished)
    ends.push_back(std::to_string(one.thread) + "." + std::to_string(one.epoch));
  return ends;
}

void PlayedProgram::record(size_t size, uint32_t domain) {
  Publish(publisher_, Kind::kOrdered, MakeToken(thread_, domain, epoch_, next_[domain]++), size);
}

void PlayedProgram::callback(size_t size, uint32_t reply) {
  CHECK(Publish(publisher_, Kind::kOrdered, MakeToken(thread_, 0, epoch_, next_[0]++), size, kCallback, reply) ||
        reply == 0);
}

void PlayedProgram::unordered_callback() {
  Publish(publisher_, Kind::kUnordered, MakeToken(thread_, 0, epoch_, 0), 8, kCallback);
}

void PlayedProgram::unordered(size_t size) {
  Publish(publisher_, Kind::kUnordered, MakeToken(thread_, 0, epoch_, 0), size);
}

void PlayedProgram::close() {
  next_[0];
  Close(publisher_, thread_, epoch_, {next_.begin(), next_.end()});
}

namespace {

void CheckPayload(const RecordHeader &header, const std::string &payload) {
  const Token &token = header.token;
  CHECK_EQ(header.site, kSite);
  CHECK_EQ(header.device, (header.flags & kReplicated) != 0 ? kAllDevices : kDevice);
  Preface preface;
  CHECK(payload.size() >= sizeof preface);
  std::memcpy(&preface, payload.data(), sizeof preface);
  CHECK_EQ(payload.size(), sizeof preface + RoundUp8(preface.size));
  CHECK(payload.compare(sizeof preface, preface.size, BytesOf(token, preface.size)) == 0);
}

} // namespace

World::World(WhenFull when_full, size_t ring_bytes) {
  publisher.when_full = when_full;
  publisher.ring_bytes = ring_bytes;
}

uint64_t World::show_text() {
  sites.set_plan(kSite, LinePlan());
  return kSink;
}

bool World::plain(bool ordered, size_t size, uint16_t flags, uint32_t reply) {
  const Token token = MakeToken(kPlainThread, 0, drain.open(kPlainThread, 0), 0);
  const Kind kind = ordered ? Kind::kOrdered : Kind::kUnordered;
  const bool published = Publish(publisher, kind, token, size, flags, reply);
  Close(publisher, kPlainThread, token.epoch, {{0, ordered ? 1 : 0}});
  return published;
}

Batch World::step(std::chrono::milliseconds patience) {
  Batch batch = drain.next_batch(patience);
  bool runs = false;
  for (const Item &item : batch.items) {
    runs = runs || item.kind != ItemKind::kText;
    if (runs) CHECK_EQ(item.info.thread, batch.run);
    if (item.kind == ItemKind::kText) {
      ForEachLine(item, [&](const Preface &preface) {
        const Token token{preface.stream, preface.epoch, 0, preface.index};
        see(item, static_cast<Kind>(preface.kind), token);
      });
      continue;
    }
    ForEachRecord(item, [&](const RecordHeader &header, const std::string &payload) {
      CheckPayload(header, payload);
      if (header.reply != 0) ++awaited_seen;
      see(item, header.kind, header.token);
    });
  }
  CHECK_EQ(runs, batch.run != Batch::kNoRun);
  for (const Finished &one : batch.finished) {
    Seen &seen = seen_of(one.thread);
    CHECK_EQ(one.epoch, seen.ended);
    ++seen.ended;
    ++finished;
  }
  return batch;
}

void World::resume(const Batch &batch) {
  CHECK(batch.run != Batch::kNoRun);
  drain.resume(batch.run, batch.run_number);
}

Batch World::play(std::chrono::milliseconds patience) {
  Batch batch = step(patience);
  if (batch.run != Batch::kNoRun) resume(batch);
  return batch;
}

void World::until_finished(size_t epochs) {
  while (finished < epochs) play();
  CHECK_EQ(finished, epochs);
}

void World::check_nothing_lost(uint64_t attempts) {
  CHECK_EQ(publisher.stats.released.load() + publisher.stats.dropped.load(), attempts);
  CHECK_EQ(ordered_seen + unordered_seen, publisher.stats.released.load());
}

void World::see(const Item &item, Kind kind, const Token &token) {
  const uint32_t thread = ThreadOf(token);
  CHECK_EQ(item.info.thread, thread);
  if (thread == kPlainThread) ++plain_seen;
  if (item.kind != ItemKind::kText) CHECK_EQ(item.info.epoch, token.epoch); // a text may be of several
  Seen &seen = seen_of(thread);
  CHECK(token.epoch >= seen.ended);
  if (kind == Kind::kUnordered) {
    ++unordered_seen;
    return;
  }
  auto &[epoch, next] = seen.next[DomainOf(token)];
  CHECK(token.epoch >= epoch);
  if (token.epoch != epoch) next = 0;
  epoch = token.epoch;
  if (publisher.when_full.load() == WhenFull::kWait && !gaps_allowed)
    CHECK_EQ(token.index, next);
  else
    CHECK(token.index >= next);
  next = token.index + 1;
  ++ordered_seen;
}

World::Seen &World::seen_of(uint32_t thread) { return threads_[thread]; }

Batch DuringScan(World &world, const std::function<void()> &first, const std::function<void()> &second,
                 const std::function<void()> &behind, const std::function<void()> &before) {
  std::atomic<int> stage{0};
  const auto await = [&](int awaited) {
    while (stage < awaited) std::this_thread::yield();
  };
  std::thread one([&] {
    first();
    stage = 1;
    await(3);
    behind();
    stage = 4;
    await(6);
  });
  std::thread two([&] {
    await(1);
    second();
    stage = 2;
    await(4);
    before();
    stage = 5;
    await(6);
  });
  await(2);
  std::vector<ProducerRing *> rings;
  CHECK(world.publisher.for_each_ring([&](ProducerRing &ring) {
    rings.push_back(&ring);
    return true;
  }));
  CHECK(rings.size() >= 2);
  Batch batch;
  std::unique_lock held(rings[1]->consumer);
  std::thread drain([&] { batch = world.step(); });
  while (rings[0]->ring.used() != 0) std::this_thread::yield();
  stage = 3;
  await(5);
  held.unlock();
  drain.join();
  stage = 6;
  one.join();
  two.join();
  return batch;
}

} // namespace effects
