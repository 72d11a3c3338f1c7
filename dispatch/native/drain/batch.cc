#include "batch.h"

#include <cstring>
#include <utility>

namespace effects {
namespace {

// The header of the first of an item's records.
RecordHeader HeaderOf(const Item &item) {
  RecordHeader header;
  std::memcpy(&header, item.data.data(), sizeof header);
  return header;
}

// Whether the last of the items takes more records of this epoch.
bool Continues(const Item &item, const EpochInfo &info) {
  return item.info.epoch == info.epoch && item.reply == 0 && item.info.failed == info.failed;
}

// The last of the items if it is of this kind and thread.
Item *Last(std::vector<Item> &items, ItemKind kind, uint32_t thread) {
  return !items.empty() && items.back().kind == kind && items.back().info.thread == thread ? &items.back() : nullptr;
}

Item &Begin(std::vector<Item> &items, ItemKind kind, const EpochInfo &info) {
  Item &item = items.emplace_back();
  item.kind = kind;
  item.info = info;
  return item;
}

// Whether Python has just got records of this epoch that call nothing. It makes their text at once with that of those
// that follow, where each text by itself would be an item between others.
bool FollowsRecords(std::vector<Item> &items, const EpochInfo &info) {
  const Item *const last = Last(items, ItemKind::kRecords, info.thread);
  return last != nullptr && !last->has_callbacks && Continues(*last, info);
}

} // namespace

void BatchBuilder::begin(Batch &batch) {
  bytes_ = 0;
  std::vector<Item> rest;
  for (Item &item : carried_) {
    if (must_carry(batch, item.info.thread)) {
      rest.push_back(std::move(item));
      continue;
    }
    if (item.kind != ItemKind::kText && !batch.has_run())
      begin_run(batch, item.info.thread, DomainOf(HeaderOf(item).token));
    if (item.reply != 0) close_run();
    batch.items.push_back(std::move(item));
  }
  carried_ = std::move(rest);
}

void BatchBuilder::end(Batch &batch) {
  if (!batch.has_run()) return;
  run_closed_ = false;
  order_.lift_restriction();
  batch.run_number = order_.suspend(batch.run, batch.domain);
}

void BatchBuilder::release(Batch &batch, const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
  stats_.released.fetch_add(1, std::memory_order_relaxed);
  const bool callback = (header.flags & kCallback) != 0;
  const bool native = !callback && info.sink != 0 && !python_sees_all_.load(std::memory_order_relaxed);
  const Plan *const plan = native ? plan_of(header.site) : nullptr;
  // Handlers, like callbacks, are functions of the user's.
  if (plan == nullptr && !batch.has_run()) begin_run(batch, info.thread, DomainOf(header.token));
  // The functions of one thread must not delay the records of another: what is unordered goes into the next batch.
  const bool carry = must_carry(batch, info.thread);
  auto &items = carry ? carried_ : batch.items;
  if (plan != nullptr && (payload.block || !FollowsRecords(items, info)))
    append_text(items, *plan, header.site, payload, info);
  else
    append_record(items, header, std::move(payload), info);
  Item &item = items.back();
  ++item.count;
  if (item.reply != 0 && !carry) close_run();
}

void BatchBuilder::append_text(std::vector<Item> &items, const Plan &plan, uint64_t site, const Payload &payload,
                               const EpochInfo &info) {
  Item *item = Last(items, ItemKind::kText, info.thread);
  if (item == nullptr || item->info.sink != info.sink) item = &Begin(items, ItemKind::kText, info);
  const size_t before = item->data.size();
  static const PrintOptions &by_default = PrintOptionsOf(0); // found once: that takes a lock
  const bool is_regular = IsRegular(plan);
  std::vector<TextRun> &runs = item->runs;
  FormatLanes(item->data, plan, payload.data, info.options != nullptr ? *info.options : by_default, [&] {
    if (runs.empty() || runs.back().site != site || runs.back().epoch != info.epoch || !is_regular)
      runs.push_back({site, 0, info.epoch, 0});
    runs.back().end = item->data.size();
    ++runs.back().count;
  });
  bytes_ += item->data.size() - before;
}

void BatchBuilder::append_record(std::vector<Item> &items, const RecordHeader &header, Payload &&payload,
                                 const EpochInfo &info) {
  const bool large = static_cast<bool>(payload.block);
  Item *item = large ? nullptr : Last(items, ItemKind::kRecords, info.thread);
  if (item == nullptr || !Continues(*item, info))
    item = &Begin(items, large ? ItemKind::kLarge : ItemKind::kRecords, info);
  RecordHeader shown = header;
  if (shown.time == 0) shown.time = UnixTime();                     // it was published before anything needed the time
  if ((shown.flags & kReplicated) != 0) shown.device = kAllDevices; // whichever was heard first
  item->data.append(reinterpret_cast<const char *>(&shown), sizeof shown);
  if (large) {
    item->block = std::move(payload.block);
    item->size = header.payload_size;
  } else {
    item->data.append(reinterpret_cast<const char *>(payload.data), header.payload_size);
  }
  const bool callback = (header.flags & kCallback) != 0;
  item->has_callbacks = item->has_callbacks || callback;
  item->reply = callback ? header.reply : 0;
  bytes_ += sizeof header + header.payload_size;
}

// The batch has records for Python of this thread's programs and this domain. It ends with them.
void BatchBuilder::begin_run(Batch &batch, uint32_t thread, uint32_t domain) {
  batch.run = thread;
  batch.domain = domain;
  order_.restrict_to(thread, domain);
}

// What comes last in the batch is waited for. Its answer lets a program go on, which must not wait for what the batch
// holds.
void BatchBuilder::close_run() {
  run_closed_ = true;
  order_.let_none_leave();
}

bool BatchBuilder::must_carry(const Batch &batch, uint32_t thread) const {
  return batch.has_run() && (run_closed_ || batch.run != thread);
}

const Plan *BatchBuilder::plan_of(uint64_t site) {
  if (last_plan_ == nullptr || site != last_site_) {
    auto plan = sites_.plan(site);
    if (plan == nullptr) return nullptr;
    last_site_ = site;
    last_plan_ = std::move(plan);
  }
  return last_plan_.get();
}

} // namespace effects
