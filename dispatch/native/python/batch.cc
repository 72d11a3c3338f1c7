#include "batch.h"

#include <nanobind/ndarray.h>

#include <cstring>
#include <utility>

#include "../xla/runtime.h"

namespace nb = nanobind;

namespace effects {
namespace {

// A large payload, without a copy: the array owns the block.
nb::object ToArray(Block block, size_t size) {
  std::byte *const data = block.release();
  nb::capsule owner(data, [](void *pointer) noexcept { Free()(static_cast<std::byte *>(pointer)); });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(data, {size}, owner));
}

// The records of an item that calls functions: a `CallbackRecord` for each callback (`several`: several devices make
// the call), and `RecordsBetween` for the records between them.
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
                                  operands, header.time));
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

} // namespace

nb::tuple ToTuple(const Token &token) { return nb::make_tuple(token.stream, token.epoch, token.phase, token.index); }

bool IsOfSeveral(const RecordHeader &header) {
  return header.reply != 0 && ((header.flags & kReplicated) != 0 || InRegion(header.token));
}

nb::tuple ToPython(Batch &batch) {
  nb::list forgotten;
  for (const uint64_t site : batch.forgotten) forgotten.append(site);
  nb::list complete;
  for (const CompleteEpoch &each : batch.complete) {
    nb::set left;
    for (const uint32_t domain : each.left) left.add(domain);
    complete.append(nb::make_tuple(each.thread, each.epoch, left));
  }
  const nb::object run = batch.has_run() ? nb::object(nb::int_(batch.run)) : nb::object(nb::none());
  return nb::make_tuple(ToItems(batch), ToRuns(batch.finished), complete, forgotten, run, batch.domain,
                        batch.run_number, batch.stopped);
}

} // namespace effects
