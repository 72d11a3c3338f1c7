#include "dispatcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "call.h"

namespace effects {
namespace {

// Names of attributes, made once.
struct Names {
  PyObject *fast_path = PyUnicode_InternFromString("_fast_path");
  PyObject *value = PyUnicode_InternFromString("value");
  PyObject *current_tokens = PyUnicode_InternFromString("current_tokens");
};

const Names &names() {
  static const Names all;
  return all;
}

// The parts of `Dispatcher._fast_path`: true if its newest program has no effects, and the function that calls it.
enum FastPath { kIsPlain, kCaller, kFunction };

nb::handle At(nb::handle fast_path, FastPath which) {
  return NB_TUPLE_GET_ITEM(fast_path.ptr(), static_cast<Py_ssize_t>(which));
}

PyObject *CallDispatcher(PyObject *self, PyObject *args, PyObject *kwargs) {
  try {
    return quick_calls().call(self, args, kwargs).release().ptr();
  } catch (nb::python_error &error) {
    error.restore();
  } catch (const std::exception &error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// self._call(*args, **kwargs), the general path in Python.
nb::object CallSlowly(nb::handle self, nb::handle args, nb::handle kwargs) {
  return Call(self.attr("_call"), {}, args, kwargs);
}

} // namespace

void QuickCalls::configure(nb::object elsewhere, nb::object clear_up, nb::handle state_of_calls, nb::object jax_tokens,
                           nb::object shared) {
  elsewhere_ = std::move(elsewhere);
  clear_up_ = std::move(clear_up);
  for (const nb::handle each : state_of_calls) state_of_calls_.emplace_back(nb::borrow(each[0]), nb::borrow(each[1]));
  jax_tokens_ = std::move(jax_tokens);
  shared_ = std::move(shared);
}

// True if the first `states` states have the values with which a call runs at once.
bool QuickCalls::runs_now(size_t states) const {
  return std::all_of(state_of_calls_.begin(), state_of_calls_.begin() + states,
                     [](const auto &state) { return Get(state.first, names().value).is(state.second); });
}

// True if a call of a program with effects waits for nothing before or after it.
bool QuickCalls::may_begin(const Stream &stream, const Caller &caller) const {
  if (NB_LIST_GET_SIZE(stream.dispatching.ptr()) != 0 || caller.traits.is_none()) return false;
  if (Has(caller.traits, kAwaitsResults) || Has(caller.traits, kHasCustomCalls)) return false;
  return runs_now(state_of_calls_.size()) && PyDict_Size(Get(jax_tokens_, names().current_tokens).ptr()) == 0;
}

// A program without effects detects by itself that jit is disabled, or that an axis is named outside of traces: JAX
// then calls no program, but a function that returns `elsewhere`.
nb::object QuickCalls::call(nb::handle self, nb::handle args, nb::handle kwargs) {
  const nb::object fast_path = Get(self, names().fast_path);
  const bool is_plain = At(fast_path, kIsPlain).is(nb::handle(Py_True));
  const nb::handle caller = At(fast_path, kCaller), function = At(fast_path, kFunction);
  Stream *const stream = Stream::here() == nullptr && is_plain ? nb::inst_ptr<Stream>(shared_) : Stream::here();
  if (attention_ != nothing_since_ || stream == nullptr || stream->is_nested()) return CallSlowly(self, args, kwargs);
  if (PyDict_Size(stream->unpolled.ptr()) != 0) return CallSlowly(self, args, kwargs);
  if (is_plain && runs_now(1)) return call_plain(self, *stream, caller, function, args, kwargs);
  if (!is_plain && may_begin(*stream, *nb::inst_ptr<Caller>(caller)))
    return call_with_effects(self, *stream, caller, function, args, kwargs);
  return CallSlowly(self, args, kwargs);
}

nb::object QuickCalls::call_plain(nb::handle self, Stream &stream, nb::handle caller, nb::handle plain, nb::handle args,
                                  nb::handle kwargs) {
  try {
    const nb::object outs = stream.call_plain(*nb::inst_ptr<Caller>(caller), plain, args, kwargs);
    return outs.is(elsewhere_) ? CallSlowly(self, args, kwargs) : outs;
  } catch (nb::python_error &error) {
    clear_up_(error.value());
    throw;
  }
}

nb::object QuickCalls::call_with_effects(nb::handle self, Stream &stream, nb::handle caller, nb::handle threaded,
                                         nb::handle args, nb::handle kwargs) {
  int64_t number = -1;
  nb::object left; // the program's results or error, if Python needs it
  try {
    number = stream.open(caller, stream.dispatching);
    Returned returned = stream.call(static_cast<uint32_t>(number), *nb::inst_ptr<Caller>(caller), stream.dispatching,
                                    threaded, args, kwargs, nb::none());
    if (!returned.outs.is(elsewhere_) && returned.awaited.is_none()) return returned.outs;
    left = nb::make_tuple(returned.outs, returned.awaited);
  } catch (nb::python_error &error) {
    left = nb::borrow(error.value());
  } catch (...) { // such as std::bad_alloc
    AbandonCalls(stream.thread, stream.dispatching, 0);
    throw;
  }
  // Python code can be interrupted at each of its steps. If only `_finish` abandoned a call:
  //   1. An interrupt ends the program's call.
  //   2. A second one ends `_finish` at its first step.
  //   3. The epoch stays in `dispatching` for good, and barriers ignore whatever the thread calls from then on.
  try {
    return self.attr("_finish")(stream.thread, number, left, args, NamesOf(kwargs));
  } catch (nb::python_error &error) {
    AbandonCalls(stream.thread, stream.dispatching, 0);
    clear_up_(error.value());
    throw;
  }
}

QuickCalls &quick_calls() {
  static QuickCalls &all = *new QuickCalls; // never destroyed: Python may be gone before what is static
  return all;
}

nb::object QuickCallsType() {
  PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void *>(&CallDispatcher)}, {0, nullptr}};
  PyType_Spec spec{"effects._native.QuickCalls", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  PyObject *const type = PyType_FromSpec(&spec);
  if (type == nullptr) throw nb::python_error();
  return nb::steal(type);
}

} // namespace effects
