// The Python face of the native part. All functions are called under Python's lock, and release it if they may wait.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../xla/handlers.h"
#include "../xla/host_failures.h"
#include "../xla/runtime.h"
#include "batch.h"
#include "buffers.h"
#include "direct_calls.h"
#include "dispatcher.h"
#include "exit.h"
#include "extension.h"
#include "stream.h"
#include "texts.h"
#include "waiting.h"
#include "wire.h"
#include "with_block.h"

namespace nb = nanobind;

namespace effects {

nb::list ToList(const std::vector<Handler> &handlers) {
  nb::list all;
  for (const Handler &handler : handlers)
    all.append(nb::make_tuple(handler.target, handler.stage, nb::capsule(handler.function)));
  return all;
}

namespace {

Token ToToken(nb::handle tuple) {
  Token token{nb::cast<uint32_t>(tuple[0]), nb::cast<uint32_t>(tuple[1]), nb::cast<uint32_t>(tuple[2]),
              nb::cast<uint32_t>(tuple[3])};
  Resolve(token);
  return token;
}

NB_MODULE(_native, m) {
  m.doc() = "The native part of token-effects: rings, release order and XLA FFI handlers.";
  // Read by effects/_model/wire.py when Python loads the module.
  m.def("wire", &Wire);

  m.def("handlers", [] { return ToList(handlers()); });
  // The failures in host functions of devices since the last call, each as (thread, epoch, text).
  m.def("taken_host_failures", [] { host_failures().taken(); });
  m.def("has_host_failures", [] { return host_failures().any(); });
  m.def("take_host_failures", [] {
    nb::list all;
    for (const HostFailure &failure : host_failures().take())
      all.append(nb::make_tuple(failure.thread, failure.epoch, failure.text));
    return all;
  });
  // The warnings about devices since the last call.
  m.def("take_warnings", [] {
    nb::list all;
    for (const std::string &text : host_failures().take_warnings()) all.append(text);
    return all;
  });
  m.def("loaded_site_type",
        [] { return nb::make_tuple(nb::capsule(LoadedSiteTypeId()), nb::capsule(LoadedSiteTypeInfo())); });

  nb::set_leak_warnings(false); // streams are not freed when the process ends
  nb::class_<Caller>(m, "Caller")
      .def(nb::init<std::string, nb::object>(), nb::arg(), nb::arg() = nb::none())
      .def_ro("name", &Caller::name)
      .def_ro("traits", &Caller::traits);
  nb::class_<Pool>(m, "Pool").def(nb::init<uint32_t, nb::object>());
  nb::class_<Stream>(m, "Stream")
      .def(nb::init<uint32_t, nb::handle, nb::handle, nb::handle, nb::handle>(), nb::arg("thread"), nb::arg("host"),
           nb::arg("array_type"), nb::arg("launch_lock").none(), nb::arg("would_trace"))
      .def_ro("thread", &Stream::thread)
      .def_ro("calls", &Stream::calls)
      .def_ro("running", &Stream::running)
      .def_ro("unpolled", &Stream::unpolled)
      .def_ro("stacks", &Stream::stacks)
      .def_ro("dispatching", &Stream::dispatching)
      .def("set_here", [](Stream &stream) { Stream::here() = &stream; })
      .def_ro("newest_calling", &Stream::newest_calling)
      .def_prop_ro("newest_call", &Stream::newest_call)
      .def_prop_ro("newest_program", &Stream::newest_program)
      .def("open", &Stream::open)
      .def("token", &Stream::token)
      .def(
          "call",
          [](Stream &stream, uint32_t number, Caller &caller, nb::list dispatching, nb::handle threaded, nb::tuple args,
             nb::dict kwargs, nb::handle given) {
            Returned returned = stream.call(number, caller, dispatching, threaded, args, kwargs, given);
            return nb::make_tuple(returned.outs, returned.awaited);
          },
          nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg() = nb::none())
      .def("call_plain", [](Stream &stream, Caller &caller, nb::handle plain, nb::tuple args, nb::dict kwargs) {
        return stream.call_plain(caller, plain, args, kwargs);
      });
  m.def("keep_stacks", [](nb::object take) { Stream::take_stack() = take.release().ptr(); });
  m.def("forget_stream_here", [] { Stream::here() = nullptr; });
  m.def("is_nested", [] { return Stream::here() != nullptr && Stream::here()->is_nested(); });
  m.attr("QuickCalls") = QuickCallsType();
  m.def("configure_quick_calls",
        [](nb::object elsewhere, nb::object clear_up, nb::handle state_of_calls, nb::object jax_tokens,
           nb::object shared) { quick_calls().configure(elsewhere, clear_up, state_of_calls, jax_tokens, shared); });
  m.def("raise_attention", [] { quick_calls().raise_attention(); });
  m.def("attention", [] { return quick_calls().attention(); });
  m.def("lower_attention", [](uint64_t since) { quick_calls().lower_attention(since); });
  // True if tracing is forbidden to the calling thread; then allows it.
  m.def("take_tracing_forbidden", &TracingForbidden::take);
  m.def("abandon", &AbandonCalls);
  m.def("fail", [](uint32_t thread, uint32_t epoch) { FailProgram({thread, epoch}, kProgramFailed); });
  m.def("forget", [](uint32_t thread) { drain().forget(thread); });
  m.def("number_anew", [](uint32_t thread) { drain().number_anew(thread); });
  m.def("refuse", [](std::string why) { publisher().refuse(std::move(why)); });
  m.def("stop", [] {
    wake_up().stop(); // first: a publisher may wait for room in a ring
    nb::gil_scoped_release without_gil;
    for (const auto &listener : listeners().when_stopped) listener();
  });
  m.def("wait", &WaitUntil, nb::arg("done"), nb::arg("timeout").none(), nb::arg("nested"));
  m.def("interrupts_to", &InterruptsTo);
  m.def("advance", [](uint32_t plain) { progress().advance(plain); });
  nb::class_<WithBlock>(m, "WithBlock")
      .def(nb::init<nb::object, nb::object, nb::object>(), nb::arg("begin"), nb::arg("end"), nb::arg("undo"))
      .def("__enter__", &WithBlock::enter)
      .def("__exit__", &WithBlock::exit, nb::arg().none(), nb::arg().none(), nb::arg().none());
  m.def("plain_opened", [] { return drain().plain_opened(); });
  m.def("plain_has_ended", [](uint32_t opened) { return progress().plain_has_ended(opened); });

  // The lead of the drain; see Drain.
  m.def("stand_by", [] { return wake_up().stand_by(); }, nb::call_guard<nb::gil_scoped_release>());
  m.def("offer", [] { return wake_up().offer(); });
  m.def("reclaim", [] { return wake_up().reclaim(); });
  m.def("leave", [] { wake_up().leave(); });
  m.def("end_with", &EndWith, nb::arg(), nb::arg("always") = false);
  m.def("set_offer_urgent", [] { wake_up().set_offer_urgent(); });
  m.def("nest", [](uint32_t thread) { drain().nest(thread); });
  m.def("resume", [](uint32_t thread, uint64_t run) { drain().resume(thread, run); });
  m.def("show_python", [](bool all) { drain().show_python(all); });
  m.def("need_time", [](bool needed) { publisher().time_users.fetch_add(needed ? 1 : -1, std::memory_order_relaxed); });

  nb::class_<DirectCalls>(m, "DirectCalls")
      .def(nb::init<nb::handle, double>(), nb::arg("host"), nb::arg("patience"))
      .def("next_batch", &DirectCalls::next_batch)
      .def("close", &DirectCalls::close);

  nb::class_<Filter>(m, "Filter")
      .def(nb::new_([] { return std::make_shared<Filter>(); })) // see Filter
      .def_prop_rw(
          "on", [](Filter &filter) { return filter.on.load(); }, [](Filter &filter, bool on) { filter.on = on; })
      .def_prop_rw(
          "level_allows", [](Filter &filter) { return filter.level_allows.load(); },
          [](Filter &filter, bool allows) { filter.level_allows = allows; })
      .def_prop_rw(
          "every", [](Filter &filter) { return filter.every.load(); },
          [](Filter &filter, uint64_t every) { filter.every = every; })
      .def_prop_rw(
          "first",
          [](Filter &filter) {
            const uint64_t first = filter.first;
            return first == Filter::kAll ? std::optional<uint64_t>() : first;
          },
          [](Filter &filter, std::optional<uint64_t> first) { filter.first = first.value_or(Filter::kAll); },
          nb::arg().none())
      .def_prop_rw(
          "min_seconds", [](Filter &filter) { return filter.min_seconds.load(); },
          [](Filter &filter, double seconds) { filter.min_seconds = seconds; })
      .def("shows", [](Filter &filter, int32_t device) { return filter.shows(device); })
      .def("counts", [](Filter &filter) {
        const Filter::Counts counts = filter.counts();
        return nb::make_tuple(counts.come, counts.shown);
      });

  // Publishes from the host: an effect outside of programs, or on a platform without native handlers. `operands` are
  // objects with the buffer protocol.
  m.def(
      "publish",
      [](uint64_t site, bool ordered, nb::tuple token, int32_t device, nb::list operands, bool callback, uint32_t reply,
         Filter *filter) {
        const Buffers buffers(operands);
        const Token place = ToToken(token);
        const uint16_t flags = callback ? kCallback : 0;
        const auto &spans = buffers.spans();
        nb::gil_scoped_release release; // publishing waits at a full ring, and the drain may need the lock to empty it
        if (FailIfStopped(reply)) return;
        publisher().throw_if_refused();
        if (filter != nullptr && !filter->shows(InRegion(place) ? device : kAllDevices)) {
          if (ordered && ThreadOf(place) != kPlainThread) publisher().skip(place, device);
          return;
        }
        if (ThreadOf(place) == kPlainThread)
          PublishPlain(site, ordered, device, spans.data(), spans.size(), flags, reply);
        else
          publisher().publish(ordered ? Kind::kOrdered : Kind::kUnordered, site, place, device, spans.data(),
                              spans.size(), flags, reply);
      },
      nb::arg("site"), nb::arg("ordered"), nb::arg("token"), nb::arg("device"), nb::arg("operands"),
      nb::arg("callback") = false, nb::arg("reply") = 0, nb::arg("filter") = nb::none());
  // A note of the host, for a tap.
  m.def(
      "note",
      [](int kind, nb::tuple token, uint64_t site, int32_t device, const std::string &text) {
        if (site != 0 && text.empty())
          NoteFunction(static_cast<Kind>(kind), ToToken(token), site, device);
        else
          publisher().note(static_cast<Kind>(kind), ToToken(token), text, site, device);
      },
      nb::arg("kind"), nb::arg("token"), nb::arg("site") = 0, nb::arg("device") = kAllDevices, nb::arg("text") = "");
  m.def("close", [](nb::list tokens, int32_t device) {
    std::vector<Token> last;
    for (nb::handle token : tokens) last.push_back(ToToken(token));
    const Span span{last.data(), last.size() * sizeof(Token)};
    nb::gil_scoped_release release;
    PublishClose(span, last.at(0), device, 0);
  });

  // Answers devices, whose programs may continue in the calling thread.
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
  m.def("end_together", [](uint32_t thread, uint32_t epoch) {
    nb::gil_scoped_release release;
    replies().end_together(thread, epoch);
  });
  // The program failed on this device, and continues on others.
  m.def("lose", [](uint32_t thread, uint32_t epoch, int32_t device) {
    nb::gil_scoped_release release; // a device that gets an error may continue in this thread
    drain().lose(thread, epoch, device);
  });
  m.def("hold", [](uint32_t thread) { drain().hold(thread); });
  m.def("let_go", [](uint32_t thread) { drain().let_go(thread); });
  m.def("fail_replies", [](const std::string &why) {
    nb::gil_scoped_release release;
    drain().fail_replies(why);
  });
  m.def("note_cancelled", [] { publisher().stats.cancelled.fetch_add(1, std::memory_order_relaxed); });
  nb::class_<HostReply>(m, "HostReply")
      .def(nb::init<>())
      .def_ro("number", &HostReply::number)
      .def("wait", &HostReply::wait);

  // The filter of a site's line: its present one, else this one.
  m.def(
      "filter_of", [](uint64_t site, std::shared_ptr<Filter> given) { return sites().filter(site, std::move(given)); },
      nb::arg(), nb::arg().none());

  m.def("retain_site", [](uint64_t site, const std::string &description) { sites().retain(site, description); });
  m.def("release_site", [](uint64_t site) { drain().release_site(site); });
  m.def("site_holders", [](uint64_t site) { return sites().holders(site); });
  m.def("site_description", [](uint64_t site) { return sites().description(site); });
  m.def("set_plan", [](uint64_t site, nb::handle plan) { sites().set_plan(site, ToPlan(plan)); });
  DefineTexts(m);

  m.def("configure", [](uint64_t ring_bytes, int when_full) {
    publisher().ring_bytes.store(ring_bytes, std::memory_order_relaxed);
    publisher().when_full.store(static_cast<WhenFull>(when_full), std::memory_order_relaxed);
  });
  m.def("stats", [] {
    const Stats &stats = publisher().stats;
    nb::dict all;
    const Published published = publisher().count_published();
    all["published"] = published.records;
    all["released"] = stats.released.load();
    all["dropped"] = stats.dropped.load();
    all["discarded"] = stats.discarded.load();
    all["cancelled"] = stats.cancelled.load();
    all["waited"] = stats.waited.load();
    all["bytes"] = published.bytes;
    all["high_water"] = stats.high_water.load();
    return all;
  });

  for (const Extension::Define define : Extension::all()) define(m);
}

} // namespace
} // namespace effects
