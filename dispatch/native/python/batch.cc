#include "batch.h"

#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "../xla/runtime.h"

namespace nb = nanobind;

namespace effects {
namespace {

// A large payload, without a copy: the array owns it.
nb::object ToArray(Block block, size_t size) {
  std::byte *const data = block.release();
  nb::capsule owner(data, [](void *pointer) noexcept { Free()(static_cast<std::byte *>(pointer)); });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(data, {size}, owner));
}

nb::tuple ToTuple(const Token &token) { return nb::make_tuple(token.stream, token.epoch, token.phase, token.index); }

// Whether it is one of several devices that ask.
bool IsOfSeveral(const RecordHeader &header) {
  return header.reply != 0 && ((header.flags & kReplicated) != 0 || InRegion(header.token));
}

// The records of an item that calls functions: a `CallbackRecord` for each callback's, of which `several` says whether
// it is one of several devices that ask, and `RecordsBetween` for what stands between them.
nb::list ToCalls(Item &item) {
  nb::list parts;
  const char *const end = item.data.data() + item.data.size();
  const char *shown = item.data.data();
  size_t count = 0;
  const auto show = [&](const char *until) {
    if (count != 0) parts.append(nb::make_tuple(nb::bytes(shown, until - shown), count));
    count = 0;
  };
  for (const char *at = shown; at != end;) {
    RecordHeader header;
    std::memcpy(&header, at, sizeof header);
    const char *const payload = at + sizeof header;
    const bool large = item.kind == ItemKind::kLarge;
    const char *const next = large ? payload : payload + header.payload_size;
    if (header.flags & kCallback) {
      show(at);
      nb::object operands = large ? ToArray(std::move(item.block), item.size) : nb::bytes(payload, header.payload_size);
      parts.append(nb::make_tuple(header.site, ToTuple(header.token), header.device, header.reply, IsOfSeveral(header),
                                  operands));
      shown = next;
    } else {
      ++count;
    }
    at = next;
  }
  show(end);
  return parts;
}

nb::list ToItems(Batch &batch) {
  nb::list items;
  for (Item &item : batch.items) {
    nb::object data, block = nb::none();
    if (item.has_callbacks) {
      data = ToCalls(item);
    } else if (item.kind == ItemKind::kText) {
      data = nb::str(item.data.data(), item.data.size());
      block = nb::bytes(reinterpret_cast<const char *>(item.runs.data()), item.runs.size() * sizeof(TextRun));
    } else {
      data = nb::bytes(item.data.data(), item.data.size());
      if (item.kind == ItemKind::kLarge) block = ToArray(std::move(item.block), item.size);
    }
    items.append(nb::make_tuple(static_cast<int>(item.kind), item.info.thread, item.info.epoch, item.count, data, block,
                                item.has_callbacks, item.info.failed, item.reply));
  }
  return items;
}

// As runs: (thread, first epoch, count).
nb::list ToRuns(const std::vector<Finished> &finished) {
  nb::list runs;
  for (size_t i = 0, next; i < finished.size(); i = next) {
    const Finished &first = finished[i];
    for (next = i + 1; next < finished.size(); ++next)
      if (finished[next].thread != first.thread || finished[next].epoch != first.epoch + (next - i)) break;
    runs.append(nb::make_tuple(first.thread, first.epoch, next - i));
  }
  return runs;
}

// The call if a batch has one that a program waits for, and nothing else; empty otherwise.
nb::object ToAsked(const Batch &batch, bool advanced) {
  if (batch.items.size() != 1 || !batch.has_run() || advanced || batch.stopped) return {};
  if (!batch.finished.empty() || !batch.forgotten.empty()) return {};
  const Item &item = batch.items.front();
  if (item.kind != ItemKind::kRecords || item.count != 1 || item.reply == 0 || item.info.failed) return {};
  RecordHeader header;
  std::memcpy(&header, item.data.data(), sizeof header);
  if (IsOfSeveral(header)) return {};
  return nb::make_tuple(batch.suspended(), batch.untracked_in_run, item.info.thread, item.info.epoch, header.site,
                        ToTuple(header.token), header.device, header.reply,
                        nb::bytes(item.data.data() + sizeof header, header.payload_size));
}

} // namespace

Batch TakeBatch(double patience_s, const nb::callable &before_untracked) {
  const std::chrono::milliseconds patience(static_cast<int64_t>(patience_s * 1e3));
  return drain().next_batch(patience, [&before_untracked] {
    nb::gil_scoped_acquire acquire;
    try {
      before_untracked();
    } catch (nb::python_error &error) { // the batch must not be lost
      error.discard_as_unraisable(before_untracked);
    }
  });
}

nb::tuple ToPython(Batch &batch) {
  const bool advanced = batch.untracked_released > progress().untracked_released();
  if (nb::object asked = ToAsked(batch, advanced); asked.is_valid()) return nb::borrow<nb::tuple>(asked);
  nb::list forgotten;
  for (const uint64_t site : batch.forgotten) forgotten.append(site);
  const auto number_if = [](bool there, uint64_t number) {
    return there ? nb::object(nb::int_(number)) : nb::object(nb::none());
  };
  return nb::make_tuple(ToItems(batch), ToRuns(batch.finished), forgotten,
                        number_if(advanced, batch.untracked_released), number_if(batch.has_run(), batch.suspended()),
                        batch.untracked_in_run, batch.stopped);
}

} // namespace effects
