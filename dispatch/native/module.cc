// The Python face of the native part.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "custom_call.h"
#include "handlers.h"
#include "stream.h"

namespace nb = nanobind;

namespace effects {
namespace {

Token ToToken(nb::handle tuple) {
  return {nb::cast<uint32_t>(tuple[0]), nb::cast<uint32_t>(tuple[1]), nb::cast<uint32_t>(tuple[2]),
          nb::cast<uint32_t>(tuple[3])};
}

// Objects with the buffer protocol, held for as long as their bytes are needed.
class Buffers {
public:
  explicit Buffers(nb::list objects) {
    buffers_.reserve(nb::len(objects));
    for (nb::handle object : objects) {
      buffers_.emplace_back();
      if (PyObject_GetBuffer(object.ptr(), &buffers_.back(), PyBUF_SIMPLE) != 0) {
        buffers_.pop_back();
        release();
        throw nb::python_error();
      }
      spans_.push_back({buffers_.back().buf, static_cast<size_t>(buffers_.back().len)});
    }
  }
  Buffers(const Buffers &) = delete;
  ~Buffers() { release(); }
  const std::vector<Span> &spans() const { return spans_; }

private:
  void release() {
    for (Py_buffer &buffer : buffers_) PyBuffer_Release(&buffer);
    buffers_.clear();
  }
  std::vector<Py_buffer> buffers_;
  std::vector<Span> spans_;
};

// A large payload, without a copy: the array owns it.
nb::object ToArray(Block block, size_t size) {
  std::byte *const data = block.release();
  nb::capsule owner(data, [](void *pointer) noexcept { std::free(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(data, {size}, owner));
}

// The records of an item that calls functions. A callback's is (site, token, device, reply, whether it is one of
// several devices that ask, payload); what stands between them is (bytes, how many).
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
    const bool large = item.what == Item::kLarge;
    const char *const next = large ? payload : payload + header.payload_size;
    if (header.flags & kCallback) {
      show(at);
      const Token &token = header.token;
      const bool several = header.reply != 0 && ((header.flags & kReplicated) != 0 || InRegion(token));
      nb::object operands = large ? ToArray(std::move(item.block), item.size) : nb::bytes(payload, header.payload_size);
      parts.append(nb::make_tuple(header.site, nb::make_tuple(token.stream, token.epoch, token.phase, token.index),
                                  header.device, header.reply, several, operands));
      shown = next;
    } else {
      ++count;
    }
    at = next;
  }
  show(end);
  return parts;
}

nb::list ToPython(Batch &batch) {
  nb::list items;
  for (Item &item : batch.items) {
    const auto tuple = [&](nb::object data, nb::object block = nb::none()) {
      items.append(nb::make_tuple(static_cast<int>(item.what), item.info.thread, item.info.epoch, item.count, data,
                                  block, item.calls, item.info.failed));
    };
    if (item.calls) {
      tuple(ToCalls(item));
      continue;
    }
    switch (item.what) {
    case Item::kText:
      tuple(nb::str(item.data.data(), item.data.size()));
      break;
    case Item::kRecords:
      tuple(nb::bytes(item.data.data(), item.data.size()));
      break;
    case Item::kLarge:
      tuple(nb::bytes(item.data.data(), item.data.size()), ToArray(std::move(item.block), item.size));
      break;
    }
  }
  return items;
}

// The process ends with this code instead of 0.
std::atomic<int> exit_code{0};

#if defined(__GLIBC__)
void AtExit(int status, void *) {
  if (status != 0) return;
  std::fflush(nullptr);
  _exit(exit_code);
}
#else
void AtExit() { // which code the process would end with is not known here
  std::fflush(nullptr);
  _exit(exit_code);
}
#endif

void EndWith(int code) {
  if (exit_code.exchange(code) != 0 || code == 0) return;
#if defined(__GLIBC__)
  on_exit(AtExit, nullptr);
#else
  std::atexit(AtExit);
#endif
}

// Somebody on the host who waits for a callback's answer.
class HostReply {
public:
  HostReply() : state_(std::make_shared<State>()) {
    number = replies().ask([state = state_](const Answer &answer) {
      std::lock_guard lock(state->mutex);
      for (const Span &span : answer.results)
        state->results.emplace_back(static_cast<const char *>(span.data), span.size);
      state->error = answer.error;
      state->done = true;
      state->condition.notify_all();
      return Replies::GoOn();
    });
  }

  // Returns the results' bytes; raises what went wrong. Python's lock is free meanwhile, and interrupts are seen.
  nb::list wait() {
    for (bool done = false; !done;) {
      {
        nb::gil_scoped_release release;
        std::unique_lock lock(state_->mutex);
        done = state_->condition.wait_for(lock, std::chrono::milliseconds(50), [&] { return state_->done; });
      }
      if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
    if (!state_->error.empty()) throw std::runtime_error(state_->error);
    nb::list results;
    for (const std::string &bytes : state_->results) results.append(nb::bytes(bytes.data(), bytes.size()));
    return results;
  }

  uint32_t number;

private:
  struct State {
    std::mutex mutex;
    std::condition_variable condition;
    bool done = false; // guarded by mutex, as are the others
    std::vector<std::string> results;
    std::string error;
  };
  std::shared_ptr<State> state_;
};

NB_MODULE(_token_effects, m) {
  m.doc() = "The native part of token-effects: rings, release order and XLA FFI handlers.";
  m.attr("ABI") = 11;
  m.attr("PLAIN_THREAD") = kPlainThread;
  m.attr("ALL_DEVICES") = kAllDevices;

  m.def("handlers", [] {
    nb::list all;
    for (const Handler &handler : handlers())
      all.append(nb::make_tuple(handler.target, handler.stage, nb::capsule(handler.function)));
    return all;
  });
  m.def("loaded_site_type",
        [] { return nb::make_tuple(nb::capsule(LoadedSiteTypeId()), nb::capsule(LoadedSiteTypeInfo())); });

  // Custom calls of the user's: `handler` is an address.
  m.def("custom_call_handlers", [] {
    nb::list all;
    for (const Handler &handler : CustomCallHandlers())
      all.append(nb::make_tuple(handler.target, handler.stage, nb::capsule(handler.function)));
    return all;
  });
  m.def("loaded_call_type",
        [] { return nb::make_tuple(nb::capsule(LoadedCallTypeId()), nb::capsule(LoadedCallTypeInfo())); });
  m.def("set_target", [](const std::string &name, const std::string &platform, uintptr_t handler) {
    return targets().set(name, platform, reinterpret_cast<UserHandler>(handler));
  });
  m.def("take_custom_call_failure", [](uint64_t number) -> nb::object {
    const auto failure = custom_call_failures().take(number);
    if (!failure) return nb::none();
    return nb::make_tuple(failure->target, failure->where, failure->code,
                          nb::bytes(failure->message.data(), failure->message.size()));
  });

  nb::set_leak_warnings(false); // the streams that are left when the process ends are left for good
  nb::class_<Caller>(m, "Caller")
      .def(nb::init<std::string, nb::object>(), nb::arg(), nb::arg() = nb::none())
      .def_ro("name", &Caller::name)
      .def_ro("issued", &Caller::issued);
  nb::class_<Pool>(m, "Pool").def(nb::init<nb::object>());
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<uint32_t, nb::handle, nb::handle, nb::handle, nb::handle>(), nb::arg("thread"), nb::arg("host"),
           nb::arg("array_type"), nb::arg("launching").none(), nb::arg("would_trace"))
      .def_ro("thread", &Stream::thread)
      .def_ro("calls", &Stream::calls)
      .def_ro("running", &Stream::running)
      .def_ro("newest_calling", &Stream::newest_calling)
      .def("open", &Stream::open)
      .def("token", &Stream::token)
      .def("call", &Stream::call, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg() = nb::none());
  // Whether tracing is to raise; afterwards it is not to.
  m.def("untraced_raises", [] { return std::exchange(UntracedRaises::here, false); });
  m.def("abandon", &AbandonCalls);
  m.def("fail", [](uint32_t thread, uint32_t epoch) { drain().fail(thread, epoch); });
  m.def("forget", [](uint32_t thread) { drain().forget(thread); });
  m.def("stop", [] { drain().stop(); });
  // `nested`: a function of the user's waits, which a drain thread runs; `for_plain`: among others for plain records.
  m.def("barrier_begins", [](bool nested, bool for_plain) {
    publisher().barriers.fetch_add(1, std::memory_order_relaxed);
    if (nested && for_plain) publisher().nested_barriers.fetch_add(1, std::memory_order_relaxed);
    nested ? publisher().hurry() : publisher().wake();
  });
  m.def("barrier_ends", [](bool nested, bool for_plain) {
    publisher().barriers.fetch_sub(1, std::memory_order_relaxed);
    if (nested && for_plain) publisher().nested_barriers.fetch_sub(1, std::memory_order_relaxed);
  });
  m.def("plain_published", [] { return publisher().plain_published.load(std::memory_order_acquire); });

  // The lead of the drain; see Drain.
  m.def(
      "stand_by", [] { return drain().stand_by(); }, nb::call_guard<nb::gil_scoped_release>());
  m.def("offer", [] { return drain().offer(); });
  m.def("reclaim", [] { return drain().reclaim(); });
  m.def("leave", [] { drain().leave(); });
  m.def("end_with", &EndWith);
  m.def("hurry", [] { publisher().hurry(); });
  m.def("nest", [](uint32_t thread) { drain().nest(thread); });
  m.def("resume", [](uint32_t thread, uint64_t plain) { drain().resume(thread, plain); });
  m.def("show_python", [](bool all) { drain().show_python(all); });

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
    nb::list forgotten;
    for (const uint64_t site : batch.forgotten) forgotten.append(site);
    const nb::object run =
        batch.run == ReleaseOrder::kNobody ? nb::object(nb::none()) : nb::object(nb::int_(batch.held()));
    return nb::make_tuple(ToPython(batch), finished, forgotten, batch.plain_released, run, batch.plain_in_run,
                          batch.stopped);
  });

  // Publishes from the host: a record of an effect that did not run inside a program, or of a platform without a
  // native handler. `operands` are objects with the buffer protocol.
  m.def(
      "publish",
      [](uint64_t site, bool ordered, nb::tuple token, int32_t device, nb::list operands, bool callback,
         uint32_t reply) {
        const Buffers buffers(operands);
        const Token place = ToToken(token);
        const uint16_t flags = callback ? kCallback : 0;
        const auto &spans = buffers.spans();
        nb::gil_scoped_release release; // a full ring makes us wait, and the drain may need the lock to empty it
        if (FailIfStopped(reply)) return;
        if (ThreadOf(place) == kPlainThread)
          PublishPlain(site, ordered, device, spans.data(), spans.size(), flags, reply);
        else
          publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, place, device, spans.data(),
                              spans.size(), flags, reply);
      },
      nb::arg("site"), nb::arg("ordered"), nb::arg("token"), nb::arg("device"), nb::arg("operands"),
      nb::arg("callback") = false, nb::arg("reply") = 0);
  m.def("close", [](nb::list tokens, int32_t device) {
    std::vector<Token> last;
    for (nb::handle token : tokens) last.push_back(ToToken(token));
    const Span span{last.data(), last.size() * sizeof(Token)};
    nb::gil_scoped_release release;
    publisher().publish(Kind::kClose, 0, last.at(0), device, &span, 1);
    if (publisher().barriers.load(std::memory_order_relaxed) > 0) publisher().wake();
  });

  // Answers go to devices, whose programs may go on in the calling thread.
  m.def("answer", [](uint32_t number, nb::list results) {
    const Buffers buffers(results);
    nb::gil_scoped_release release;
    replies().answer(number, {buffers.spans(), {}});
  });
  m.def("answer_error", [](uint32_t number, const std::string &why) {
    nb::gil_scoped_release release;
    replies().fail(number, why);
  });
  m.def("end_program", [](uint32_t thread, uint32_t epoch) {
    nb::gil_scoped_release release;
    replies().end_program(thread, epoch);
  });
  m.def("fail_replies", [](const std::string &why) {
    nb::gil_scoped_release release;
    drain().fail_replies(why);
  });
  m.def("note_cancelled", [] { publisher().stats.cancelled.fetch_add(1, std::memory_order_relaxed); });
  nb::class_<HostReply>(m, "HostReply")
      .def(nb::init<>())
      .def_ro("number", &HostReply::number)
      .def("wait", &HostReply::wait);

  m.def("retain_site", [](uint64_t site, const std::string &description) { sites().retain(site, description); });
  m.def("release_site", [](uint64_t site) { drain().release_site(site); });
  m.def("site_holders", [](uint64_t site) { return sites().holders(site); });
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
    sites().set_plan(site, std::move(plan));
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
    all["cancelled"] = stats.cancelled.load();
    all["waited"] = stats.waited.load();
    all["bytes"] = stats.bytes.load();
    all["high_water"] = stats.high_water.load();
    return all;
  });
}

} // namespace
} // namespace effects
