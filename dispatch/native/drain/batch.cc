#include "batch.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace effects {
namespace {

// True if the last item takes more records of this epoch.
bool Continues(const Item &item, const EpochInfo &info) {
  return item.info.epoch == info.epoch && item.reply == 0 && item.info.failed == info.failed;
}

// The last item if it is of this kind and thread.
template <typename Items> Item *Last(Items &items, ItemKind kind, uint32_t thread) {
  return !items.empty() && items.back().kind == kind && items.back().info.thread == thread ? &items.back() : nullptr;
}

template <typename Items> Item &Begin(Items &items, ItemKind kind, const EpochInfo &info) {
  Item &item = items.emplace_back();
  item.kind = kind;
  item.info = info;
  return item;
}

// True if the last item has records of this epoch for Python, none of which calls a function. Python formats them and
// the next records in one go; one item per text would be slower.
bool FollowsRecords(std::vector<Item> &items, const EpochInfo &info) {
  const Item *const last = Last(items, ItemKind::kRecords, info.thread);
  return last != nullptr && !last->has_callbacks && Continues(*last, info);
}

} // namespace

void BatchBuilder::begin(Batch &batch) {
  bytes_ = 0;
  while (!carried_.empty() && !must_carry(batch, carried_.front().info.thread, kNoDomain)) {
    Item &item = carried_.front();
    if (!batch.has_run()) begin_run(batch, item.info.thread, kNoDomain);
    if (item.has_callbacks) close_run();
    order_.carry(item.info.thread, -1);
    batch.items.push_back(std::move(item));
    carried_.pop_front();
  }
}

void BatchBuilder::end(Batch &batch) {
  if (!batch.has_run()) return;
  const auto run = std::find_if(batch.items.begin(), batch.items.end(),
                                [](const Item &item) { return item.kind != ItemKind::kText; });
  batch.items.insert(run, std::move_iterator(texts_.begin()), std::move_iterator(texts_.end()));
  texts_.clear();
  run_closed_ = false;
  order_.lift_restriction();
  batch.run_number = order_.suspend(batch.run, batch.domain);
}

void BatchBuilder::release(Batch &batch, const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
  stats_.released.fetch_add(1, std::memory_order_relaxed);
  const bool callback = (header.flags & kCallback) != 0;
  const bool native = !callback && info.sink != 0 && !python_sees_all_.load(std::memory_order_relaxed);
  const Plan *const plan = native ? plan_of(header.site) : nullptr;
  // Handlers are user functions, as callbacks are.
  const bool unordered = header.kind == Kind::kUnordered;
  const uint32_t domain = unordered ? kNoDomain : DomainOf(header.token);
  if (plan != nullptr && unordered && batch.has_run()) {
    append_text(texts_, *plan, header.site, payload, info);
    ++texts_.back().count;
    return;
  }
  if (plan == nullptr && !batch.has_run()) begin_run(batch, info.thread, domain);
  const bool carry = must_carry(batch, info.thread, domain);
  if (carry) {
    carry_over(header, std::move(payload), info);
    return;
  }
  if (plan != nullptr && (payload.block || !FollowsRecords(batch.items, info)))
    append_text(batch.items, *plan, header.site, payload, info);
  else
    append_record(batch.items, header, std::move(payload), info);
  Item &item = batch.items.back();
  ++item.count;
  if (item.reply != 0 || (unordered && callback)) close_run();
}

void BatchBuilder::carry_over(const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
  const size_t before = carried_.size();
  append_record(carried_, header, std::move(payload), info);
  ++carried_.back().count;
  order_.carry(info.thread, static_cast<int>(carried_.size() - before));
}

void BatchBuilder::append_text(std::vector<Item> &items, const Plan &plan, uint64_t site, const Payload &payload,
                               const EpochInfo &info) {
  Item *item = Last(items, ItemKind::kText, info.thread);
  if (item == nullptr || item->info.sink != info.sink) item = &Begin(items, ItemKind::kText, info);
  const size_t before = item->data.size();
  static const PrintOptions &by_default = PrintOptionsOf(0); // looked up once: that takes a lock
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

template <typename Items>
void BatchBuilder::append_record(Items &items, const RecordHeader &header, Payload &&payload, const EpochInfo &info) {
  const bool large = static_cast<bool>(payload.block);
  const bool callback = (header.flags & kCallback) != 0;
  Item *item = large ? nullptr : Last(items, ItemKind::kRecords, info.thread);
  // An unordered callback is an item of its own.
  const bool apart = header.kind == Kind::kUnordered && item != nullptr && (callback || item->has_callbacks);
  if (item == nullptr || apart || !Continues(*item, info))
    item = &Begin(items, large ? ItemKind::kLarge : ItemKind::kRecords, info);
  RecordHeader shown = header;
  if (shown.time == 0) shown.time = UnixTime();                     // published before anybody needed times
  if ((shown.flags & kReplicated) != 0) shown.device = kAllDevices; // whichever device came first
  item->data.append(reinterpret_cast<const char *>(&shown), sizeof shown);
  if (large) {
    item->block = std::move(payload.block);
    item->size = header.payload_size;
  } else {
    item->data.append(reinterpret_cast<const char *>(payload.data), header.payload_size);
  }
  item->has_callbacks = item->has_callbacks || callback;
  item->reply = callback ? header.reply : 0;
  bytes_ += sizeof header + header.payload_size;
}

// The batch has records for Python, of this thread's programs and this domain, and ends with them.
void BatchBuilder::begin_run(Batch &batch, uint32_t thread, uint32_t domain) {
  batch.run = thread;
  batch.domain = domain;
  order_.restrict_to(thread, domain);
}

// A device waits for the batch's last record. Its answer resumes a program, which must not wait for other records of
// the batch.
void BatchBuilder::close_run() {
  run_closed_ = true;
  order_.let_none_leave();
}

bool BatchBuilder::must_carry(const Batch &batch, uint32_t thread, uint32_t domain) const {
  return batch.has_run() && (run_closed_ || batch.run != thread || batch.domain != domain);
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
