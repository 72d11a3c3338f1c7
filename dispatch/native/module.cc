// The Python face of the native part.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "handlers.h"

namespace nb = nanobind;

namespace effects {
namespace {

nb::list ToPython(Batch &batch) {
  nb::list items;
  for (Item &item : batch.items) {
    if (item.is_text) {
      items.append(nb::make_tuple(item.info.thread, item.info.epoch, nb::str(item.data.data(), item.data.size())));
    } else {
      const RecordHeader &header = item.header;
      items.append(nb::make_tuple(
          item.info.thread, item.info.epoch, nb::bytes(item.data.data(), item.data.size()), header.site,
          nb::make_tuple(header.token.stream, header.token.epoch, header.token.phase, header.token.index),
          header.device));
    }
  }
  return items;
}

NB_MODULE(_token_effects, m) {
  m.doc() = "The native part of token-effects: rings, release order and XLA FFI handlers.";
  m.attr("ABI") = 1;
  m.attr("PLAIN_THREAD") = kPlainThread;

  m.def("handlers", [] {
    nb::list all;
    for (const Handler &handler : handlers())
      all.append(nb::make_tuple(handler.target, handler.stage, nb::capsule(handler.function)));
    return all;
  });

  m.def("open", [](uint32_t thread, uint64_t sink) { return drain().open(thread, sink); });
  m.def("has_closed", [](uint32_t thread, uint32_t epoch) { return publisher().has_closed(thread, epoch); });
  m.def("fail", [](uint32_t thread, uint32_t epoch) { drain().fail(thread, epoch); });
  m.def("forget", [](uint32_t thread) { drain().forget(thread); });
  m.def("stop", [] { drain().stop(); });
  m.def("barrier_begins", [] {
    publisher().barriers.fetch_add(1, std::memory_order_relaxed);
    publisher().wake();
  });
  m.def("barrier_ends", [] { publisher().barriers.fetch_sub(1, std::memory_order_relaxed); });
  m.def("plain_published", [] { return publisher().plain_published.load(std::memory_order_acquire); });

  m.def("next_batch", [](double patience_s) {
    const std::chrono::milliseconds patience(static_cast<int64_t>(patience_s * 1e3));
    Batch batch;
    {
      nb::gil_scoped_release release;
      batch = drain().next_batch(patience);
    }
    nb::list finished;
    for (size_t i = 0, next; i < batch.finished.size(); i = next) { // as runs: (thread, first epoch, count)
      const Finished &first = batch.finished[i];
      for (next = i + 1; next < batch.finished.size(); ++next)
        if (batch.finished[next].thread != first.thread || batch.finished[next].epoch != first.epoch + (next - i))
          break;
      finished.append(nb::make_tuple(first.thread, first.epoch, next - i));
    }
    return nb::make_tuple(ToPython(batch), finished, batch.plain_released, batch.stopped);
  });

  // Publishes from the host: a record of an effect that did not run inside a program, or of a platform without a
  // native handler. `operands` are objects with the buffer protocol.
  m.def("publish", [](uint64_t site, bool ordered, nb::tuple token, int32_t device, nb::list operands) {
    std::vector<nb::bytes> kept;
    std::vector<Span> spans;
    for (nb::handle operand : operands) {
      kept.push_back(nb::cast<nb::bytes>(operand));
      spans.push_back({kept.back().c_str(), kept.back().size()});
    }
    Token place{nb::cast<uint32_t>(token[0]), nb::cast<uint32_t>(token[1]), nb::cast<uint32_t>(token[2]),
                nb::cast<uint32_t>(token[3])};
    nb::gil_scoped_release release; // a full ring makes us wait, and the drain may need the lock to empty it
    if (ThreadOf(place) == kPlainThread)
      PublishPlain(site, ordered, device, spans.data(), spans.size());
    else
      publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, place, device, spans.data(), spans.size());
  });
  m.def("close", [](nb::list tokens, int32_t device) {
    std::vector<Token> last;
    for (nb::handle one : tokens) {
      auto token = nb::cast<nb::tuple>(one);
      last.push_back({nb::cast<uint32_t>(token[0]), nb::cast<uint32_t>(token[1]), nb::cast<uint32_t>(token[2]),
                      nb::cast<uint32_t>(token[3])});
    }
    const Span span{last.data(), last.size() * sizeof(Token)};
    nb::gil_scoped_release release;
    publisher().publish(Kind::kClose, 0, last.at(0), device, &span, 1);
    if (publisher().barriers.load(std::memory_order_relaxed) > 0) publisher().wake();
  });

  m.def("site_description", [](uint64_t site) { return sites().description(site); });
  m.def("set_plan", [](uint64_t site, nb::list pieces) {
    Plan plan;
    for (nb::handle one : pieces) {
      auto piece = nb::cast<nb::tuple>(one);
      Piece p;
      p.literal = nb::cast<std::string>(piece[0]);
      if (!piece[1].is_none()) {
        p.has_field = true;
        p.type = static_cast<Scalar>(nb::cast<int>(piece[1]));
        p.offset = nb::cast<uint64_t>(piece[2]);
        const auto conversion = nb::cast<std::string>(piece[3]);
        p.conversion = conversion.empty() ? 0 : conversion[0];
        p.precision = nb::cast<int>(piece[4]);
      }
      plan.push_back(std::move(p));
    }
    drain().set_plan(site, std::move(plan));
  });

  m.def("configure", [](uint64_t ring_bytes, int when_full) {
    publisher().ring_bytes.store(ring_bytes, std::memory_order_relaxed);
    publisher().when_full.store(static_cast<WhenFull>(when_full), std::memory_order_relaxed);
  });
  m.def("stats", [] {
    const Stats &stats = publisher().stats;
    nb::dict all;
    all["published"] = stats.published.load();
    all["released"] = stats.released.load();
    all["dropped"] = stats.dropped.load();
    all["waited"] = stats.waited.load();
    all["bytes"] = stats.bytes.load();
    all["high_water"] = stats.high_water.load();
    return all;
  });
}

} // namespace
} // namespace effects
