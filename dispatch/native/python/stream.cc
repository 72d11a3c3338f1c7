#include "stream.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>
#include <vector>

#include "../xla/runtime.h"
#include "call.h"

namespace effects {
namespace {

// True if two contexts hold identical values: equal values may be shown differently, or fail to compare.
bool SameContext(nb::handle a, nb::handle b) {
  if (nb::len(a) != nb::len(b)) return false;
  if (nb::len(a) == 0) return true;
  for (nb::handle variable : a) {
    const int there = PySequence_Contains(b.ptr(), variable.ptr());
    if (there < 0) throw nb::python_error();
    if (there == 0 || !nb::object(a[variable]).is(nb::object(b[variable]))) return false;
  }
  return true;
}

struct Names {
  nb::object sharding = nb::steal(PyUnicode_InternFromString("sharding"));
  nb::object committed = nb::steal(PyUnicode_InternFromString("committed"));
};
const Names &names() {
  static const Names &all = *new Names; // never destroyed: Python may be gone before what is static
  return all;
}

} // namespace

Stream::Stream(uint32_t thread, nb::handle host, nb::handle array_type, nb::handle launch_lock, nb::handle would_trace)
    : thread(thread), newest_(nb::make_tuple(nb::none(), nb::none(), nb::none())), host_(nb::borrow(host)),
      array_type_(nb::borrow(array_type)), launch_lock_(nb::borrow(launch_lock)), would_trace_(nb::borrow(would_trace)),
      on_one_device_(nb::module_::import_("jax.sharding").attr("SingleDeviceSharding")),
      copy_context_(nb::module_::import_("contextvars").attr("copy_context")),
      sys_(nb::module_::import_("sys").attr("__dict__")), stdout_(nb::steal(PyUnicode_InternFromString("stdout"))) {}

Stream *&Stream::here() {
  static thread_local Stream *stream = nullptr;
  return stream;
}

PyObject *&Stream::take_stack() {
  static PyObject *take = nullptr;
  return take;
}

void NoteFunction(Kind kind, const Token &token, uint64_t site, int32_t device) {
  const std::string thread = Stream::here() == nullptr ? "" : std::to_string(Stream::here()->thread);
  publisher().note(kind, token, thread, site, device);
}

uint32_t Stream::open(nb::handle caller, nb::list dispatching) {
  PyObject *const output = PyDict_GetItemWithError(sys_.ptr(), stdout_.ptr());
  const nb::object stdout_now = output != nullptr ? nb::borrow(output) : nb::object(nb::none());
  const nb::object context = copy_context_();
  nb::object call = newest_;
  const auto was = [&](Py_ssize_t i) { return nb::handle(NB_TUPLE_GET_ITEM(call.ptr(), i)); };
  if (!was(1).is(stdout_now)) may_wait_ = nb::cast<bool>(host_.attr("may_wait")(stdout_now));
  const bool same_context = !was(2).is_none() && SameContext(was(2), context);
  if (!same_context) options_ = find_options();
  if (!was(0).is(caller) || !was(1).is(stdout_now) || !same_context)
    newest_ = call = nb::make_tuple(caller, stdout_now, context);
  // Writing that may wait is a user function, so Python replays such records as it calls functions.
  const bool by_python = may_wait_ || options_ == nullptr;
  const uint32_t number = drain().open(thread, by_python ? 0 : reinterpret_cast<uintptr_t>(call.ptr()), options_);
  publisher().note(Kind::kDispatched, {StreamOf(thread, 0), number, 0, 0}, nb::inst_ptr<Caller>(caller)->name);
  opened_ = number;
  const nb::int_ key(number);
  dispatching.append(key);
  calls[key] = call;
  if (take_stack() != nullptr) stacks[key] = nb::handle(take_stack())();
  return number;
}

const PrintOptions *Stream::find_options() {
  const nb::object number = host_.attr("print_options")();
  return number.is_none() ? nullptr : &PrintOptionsOf(nb::cast<uint32_t>(number));
}

nb::object Stream::token(uint32_t number) {
  if (number >> kBlockBits != block_) {
    tokens_ = nb::cast<nb::list>(host_.attr("make_tokens")(number >> kBlockBits << kBlockBits, 1 << kBlockBits));
    block_ = number >> kBlockBits;
  }
  return tokens_[number & ((1 << kBlockBits) - 1)];
}

Returned Stream::call(uint32_t number, Caller &caller, nb::list dispatching, nb::handle threaded, nb::handle args,
                      nb::handle kwargs, nb::handle given) {
  const bool several = several_devices();
  const TracingForbidden no(false); // this may be inside another call
  FoundPool found =
      given.is_none() ? find_pool(caller, args, kwargs) : FoundPool{nb::none(), several && spans_devices(args, kwargs)};
  if (found.is_callers && caller.pool_of != thread) {
    if (several && !launch_lock_.is_none() && !caller.compiled)
      compile(caller, threaded, token(number), args, kwargs, /*gave_up=*/false);
    found.pool = first_pool(caller);
  }
  Pool *const pool = found.pool.is_none() ? nullptr : nb::cast<Pool *>(found.pool);
  PlacedToken placed;
  if (pool != nullptr) placed = pool->take(number, calls);
  const nb::object runtime_token = pool != nullptr ? placed.array : given.is_none() ? token(number) : nb::borrow(given);
  const nb::object returned = several && !launch_lock_.is_none()
                                  ? launch(caller, found.over_several, threaded, runtime_token, args, kwargs)
                                  : Call(threaded, runtime_token, args, kwargs);
  forget_closed();
  nb::object awaited = nb::none();
  const bool closed = publisher().closed.contains(thread, number);
  PyObject *traits, *output_token;
  Py_ssize_t at = 0;
  if (PyDict_Next(nb::object(returned[1]).ptr(), &at, &traits, &output_token)) { // one, if any
    set_newest(number, caller, output_token);
    awaited = keep(number, caller, traits, output_token, closed);
    if (found.is_callers) note_place(caller, output_token);
    if (pool != nullptr) {
      const bool calls_handlers = Has(traits, kHasCustomCalls);
      closed && !calls_handlers
          ? pool->give(std::move(placed))
          : pool->give_later(std::move(placed), calls_handlers ? nb::handle(output_token) : nb::none());
    }
  } else { // a program without effects publishes no close marker and reads no token
    drain().fail(thread, number);
    publisher().note(Kind::kClose, {StreamOf(thread, 0), number, 0, 0});
    if (pool != nullptr) pool->give(std::move(placed));
  }
  publisher().note(Kind::kReturned, {StreamOf(thread, 0), number, 0, 0});
  const Py_ssize_t last = NB_LIST_GET_SIZE(dispatching.ptr()) - 1;
  if (PySequence_DelItem(dispatching.ptr(), last) != 0) throw nb::python_error();
  return {returned[0], std::move(awaited)};
}

nb::object Stream::call_plain(Caller &caller, nb::handle plain, nb::handle args, nb::handle kwargs) {
  const TracingForbidden no(false); // as above
  if (!several_devices() || launch_lock_.is_none()) return Call(plain, {}, args, kwargs);
  return launch(caller, caller.several || spans_devices(args, kwargs), plain, {}, args, kwargs);
}

// Keeps a program's output token for as long as the program may fail. The drain may have been faster:
//   1. The program runs to its end before its call returns.
//   2. The drain sees the end, and removes the epoch from `calls` and `running`.
//   3. Kept in `running` now, the program's output token would stay there for good.
// So a program that has closed, or is not in `calls` any more, is not kept.
nb::object Stream::keep(uint32_t number, Caller &caller, nb::handle traits, nb::handle output_token, bool closed) {
  caller.traits = nb::borrow(traits);
  if (Has(traits, kHasCallbacks)) newest_calling = number;
  const bool has_calls = Has(traits, kHasCustomCalls);
  if (closed && !has_calls) return nb::none();
  const nb::tuple both = nb::make_tuple(traits, output_token);
  if (const nb::int_ key(number); !closed && calls.contains(key)) {
    running[key] = both;
    unclosed_.push_back(number);
  }
  if (has_calls) unpolled[nb::int_(number)] = nb::make_tuple(caller.name, traits, output_token);
  const bool may_fail = has_calls || (!closed && Has(traits, kAwaitsResults));
  return may_fail ? nb::object(both) : nb::object(nb::none());
}

// Only its output token tells that a program hangs after its last effect.
void Stream::set_newest(uint32_t number, Caller &caller, nb::handle output_token) {
  nb::object token = nb::borrow(output_token);
  newest_number_ = number;
  if (!newest_caller_.is_valid() || nb::inst_ptr<Caller>(newest_caller_) != &caller) newest_caller_ = nb::find(caller);
  std::swap(newest_token_, token); // the old value is freed last
}

nb::object Stream::newest_call() const {
  const nb::handle caller = NB_TUPLE_GET_ITEM(newest_.ptr(), 0);
  if (caller.is_none()) return nb::none();
  return nb::make_tuple(opened_, caller);
}

nb::object Stream::newest_program() const {
  if (!newest_token_.is_valid()) return nb::none();
  return nb::make_tuple(newest_number_, newest_caller_, newest_token_);
}

bool Stream::several_devices() {
  if (!several_) several_ = nb::cast<bool>(host_.attr("several_devices")());
  return *several_;
}

// Calls a program. `over_several`: true if its arguments lie on several devices.
//
// Devices run programs in launch order. Without a lock:
//   1. Thread A launches its program on device 0, and thread B its own on device 1.
//   2. Each launches its program on the other device, behind the other thread's.
//   3. A's program waits in a collective on device 0 for device 1, where it is queued behind B's, which waits in the
//      same way for device 0: a deadlock.
// So one thread at a time launches a program on several devices. If the lock were held for a trace, too:
//   1. Thread A holds the lock and traces a user function, which waits for thread B.
//   2. B waits for the lock.
// So a program for several devices is compiled first, without the lock, and then launched.
nb::object Stream::launch(Caller &caller, bool over_several, nb::handle program, nb::handle token, nb::handle args,
                          nb::handle kwargs) {
  const auto waits = [&] { return caller.several || over_several; };
  std::optional<Compiling> compiling;
  bool gave_up = false;
  if (caller.compiled && waits()) {
    std::optional<PyLockGuard> guard;
    acquire_launch_lock(guard);
    if (caller.compiling == 0) { // otherwise JAX may block this thread until the other has compiled
      const TracingForbidden yes(true);
      try {
        return put(program, token, args, kwargs);
      } catch (nb::python_error &error) {
        if (!error.matches(would_trace_)) throw;
        gave_up = true;
      }
    }
    compiling.emplace(caller); // before other threads call it
  }
  if (compiling || !caller.compiled) compile(caller, program, token, args, kwargs, gave_up);
  compiling.reset();
  if (!waits()) return Call(program, token, args, kwargs);
  std::optional<PyLockGuard> guard;
  acquire_launch_lock(guard);
  return put(program, token, args, kwargs);
}

// Compiles a program into JAX's cache, where the call finds it.
void Stream::compile(Caller &caller, nb::handle program, nb::handle token, nb::handle args, nb::handle kwargs,
                     bool gave_up) {
  const Compiling compiling(caller);
  const nb::object given = token.is_valid() ? nb::make_tuple(token) + args : nb::borrow(args);
  const nb::object several = host_.attr("compile")(caller.compile_lock, program, given, NamesOf(kwargs), gave_up);
  caller.several = caller.several || nb::cast<bool>(several);
  caller.compiled = true;
}

// True if the number of programs that run over several devices is limited.
bool Stream::limits() {
  if (!most_in_flight_) most_in_flight_ = nb::cast<size_t>(host_.attr("most_in_flight")());
  return *most_in_flight_ != 0;
}

// Waits until a program may be launched on several devices, and keeps other threads from launching.
void Stream::acquire_launch_lock(std::optional<PyLockGuard> &guard) {
  for (;;) {
    if (limits()) in_flight().make_room(*most_in_flight_);
    guard.emplace(launch_lock_);
    if (!limits() || in_flight().has_room(*most_in_flight_)) return;
    guard.reset(); // while this thread waits for room, others may launch
  }
}

// Launches a program on several devices.
nb::object Stream::put(nb::handle program, nb::handle token, nb::handle args, nb::handle kwargs) {
  nb::object returned = Call(program, token, args, kwargs);
  PyObject *traits, *output_token;
  Py_ssize_t at = 0;
  if (limits() && token.is_valid() && PyDict_Next(nb::object(returned[1]).ptr(), &at, &traits, &output_token))
    in_flight().add(output_token);
  return returned;
}

// The pool of tokens on the devices of the program's arguments. If these name none, it is a guess: where the function's
// newest program ran. If the guess is wrong, JAX copies the token.
Stream::FoundPool Stream::find_pool(const Caller &caller, nb::handle args, nb::handle kwargs) {
  if (!one_device_) one_device_ = nb::cast<bool>(host_.attr("one_device")());
  if (*one_device_) return {pool_of_one()};
  const bool several = several_devices(), has_names = HasNames(kwargs);
  if (several && has_known_sharding(args)) return {pool_, true};
  nb::object sharding;
  if (on_one_device(args, &sharding) && !has_names) {
    if (sharding.is_valid()) return {pool_on(std::move(sharding))};
  } else if (several) {
    const nb::object found = host_.attr("find_pool")(args, NamesOf(kwargs));
    nb::object pool = found[1];
    sharding = found[0];
    if (!sharding.is_none()) {
      std::swap(sharding_, sharding); // both, before the old values are freed
      std::swap(pool_, pool);
      return {pool_, true};
    }
    if (!pool.is_none()) return {pool};
  }
  return {caller.pool, false, true};
}

// The pool of tokens where the function's newest program ran, called by another thread, or where a first program is
// likely to run.
nb::object Stream::first_pool(Caller &caller) {
  if (!caller.ran_on.is_valid()) return caller.several ? nb::none() : host_.attr("find_first_pool")();
  nb::object pool = host_.attr("find_pool_on")(caller.ran_on);
  caller.pool_of = thread;
  std::swap(caller.pool, pool); // the old value is freed last
  return caller.pool;
}

// After a call whose arguments named no device.
void Stream::note_place(Caller &caller, nb::handle output_token) {
  nb::object sharding = Get(output_token, names().sharding);
  if (sharding.is(caller.ran_on) && caller.pool_of == thread) return;
  nb::object pool = host_.attr("find_pool_on")(sharding);
  caller.pool_of = thread;
  std::swap(caller.ran_on, sharding); // as above
  std::swap(caller.pool, pool);
}

// True if the arguments lie on several devices.
bool Stream::spans_devices(nb::handle args, nb::handle kwargs) {
  if (has_known_sharding(args)) return true;
  if (on_one_device(args) && !HasNames(kwargs)) return false;
  return nb::cast<bool>(host_.attr("spans_devices")(args, NamesOf(kwargs)));
}

// The pool of tokens on the only device.
nb::object Stream::pool_of_one() {
  if (!pool_of_one_.is_valid()) pool_of_one_ = host_.attr("find_pool_of_one")();
  return pool_of_one_;
}

// The pool of tokens on the one device of a sharding.
nb::object Stream::pool_on(nb::object sharding) {
  if (sharding.is(sharding_on_one_)) return pool_of_one_;
  nb::object pool = host_.attr("find_pool_on")(sharding);
  std::swap(sharding_on_one_, sharding); // as above
  std::swap(pool_of_one_, pool);
  return pool_of_one_;
}

// True if an argument has the sharding of the newest program on several devices.
bool Stream::has_known_sharding(nb::handle args) {
  if (!sharding_.is_valid()) return false;
  for (Py_ssize_t i = 0, count = NB_TUPLE_GET_SIZE(args.ptr()); i < count; ++i) {
    const nb::handle arg = NB_TUPLE_GET_ITEM(args.ptr(), i);
    if (arg.type().is(array_type_) && Get(arg, names().sharding).is(sharding_)) return true;
  }
  return false;
}

// True if these are all numbers and arrays on one device; Python looks into other arguments. Sets `committed` to the
// sharding of the first committed array.
bool Stream::on_one_device(nb::handle args, nb::object *committed) {
  for (Py_ssize_t i = 0, count = NB_TUPLE_GET_SIZE(args.ptr()); i < count; ++i) {
    const nb::handle arg = NB_TUPLE_GET_ITEM(args.ptr(), i);
    if (PyFloat_CheckExact(arg.ptr()) || PyLong_CheckExact(arg.ptr()) || PyBool_Check(arg.ptr())) continue;
    if (!arg.type().is(array_type_)) return false;
    nb::object sharding = Get(arg, names().sharding);
    if (!sharding.type().is(on_one_device_)) return false;
    if (committed != nullptr && !committed->is_valid() && Get(arg, names().committed).is(nb::handle(Py_True)))
      *committed = std::move(sharding);
  }
  return true;
}

// Frees the output tokens kept for closed programs, which cannot fail any more: their memory is reused next.
void Stream::forget_closed() {
  while (!unclosed_.empty()) {
    const nb::int_ oldest(unclosed_.front());
    const bool runs = running.contains(oldest);
    if (runs && calls.contains(oldest) && !publisher().closed.contains(thread, unclosed_.front())) return;
    unclosed_.pop_front();
    if (runs && PyDict_DelItem(running.ptr(), oldest.ptr()) != 0) PyErr_Clear(); // the drain may have removed it
  }
}

void AbandonCalls(uint32_t thread, nb::list dispatching, size_t depth) {
  for (size_t left = nb::len(dispatching); left > depth; --left) {
    drain().fail(thread, nb::cast<uint32_t>(dispatching[left - 1]));
    nb::del(dispatching[left - 1]);
  }
}

} // namespace effects
