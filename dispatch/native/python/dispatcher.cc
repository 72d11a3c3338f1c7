#include "dispatcher.h"

#include <exception>
#include <utility>

#include "call.h"

namespace effects {
namespace {

// Names of attributes, made once.
struct Names {
  PyObject *quick = PyUnicode_InternFromString("_quick");
  PyObject *value = PyUnicode_InternFromString("value");
  PyObject *sync = PyUnicode_InternFromString("sync");
  PyObject *current_tokens = PyUnicode_InternFromString("current_tokens");
};

const Names &names() {
  static const Names all;
  return all;
}

// What `Dispatcher._quick` has.
enum Quick { kIsPlain, kPlain, kCaller, kThreaded };

nb::handle At(nb::handle quick, Quick which) { return NB_TUPLE_GET_ITEM(quick.ptr(), static_cast<Py_ssize_t>(which)); }

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

// self._call(*args, **kwargs), as it is written in Python.
nb::object CallSlowly(nb::handle self, nb::handle args, nb::handle kwargs) {
  return Call(self.attr("_call"), {}, args, kwargs);
}

} // namespace

void QuickCalls::configure(nb::object call_config) {
  configured_ = !call_config.is_none();
  if (!configured_) return;
  several_ = nb::cast<bool>(call_config["several"]);
  elsewhere_ = call_config["elsewhere"];
  state_of_calls_.clear();
  for (const nb::handle each : call_config["state_of_calls"])
    state_of_calls_.emplace_back(nb::borrow(each[0]), nb::borrow(each[1]));
  settings_ = call_config["settings"];
  jax_tokens_ = call_config["jax_tokens"];
  failures_ = call_config["failures"];
  log_capacity_needed_ = call_config["log_capacity_needed"];
  orders_ = call_config["orders"];
  clear_up_ = call_config["clear_up"];
}

// Whether no trace is under way, and jit is not disabled.
bool QuickCalls::runs_now() const {
  for (const auto &[state, value] : state_of_calls_)
    if (!Get(state, names().value).is(value)) return false;
  return true;
}

// Whether a call is made now, and no earlier failure has to be raised.
bool QuickCalls::is_quiet() const {
  return configured_ && !IsNestedThread() && PyDict_Size(failures_.ptr()) == 0 && !Stream::any_unpolled() &&
         runs_now();
}

// The stream of the calling thread; null if it has none, or if a call in it has to wait for something before or after.
Stream *QuickCalls::stream_here() const {
  Stream *const stream = Stream::here();
  if (stream == nullptr || stream->is_nested() || NB_LIST_GET_SIZE(stream->dispatching.ptr()) != 0) return nullptr;
  if (PyDict_Size(log_capacity_needed_.ptr()) != 0 || PySet_Size(orders_.ptr()) != 1) return nullptr;
  if (!Get(settings_, names().sync).is(nb::handle(Py_False))) return nullptr;
  return PyDict_Size(Get(jax_tokens_, names().current_tokens).ptr()) == 0 ? stream : nullptr;
}

nb::object QuickCalls::call(nb::handle self, nb::handle args, nb::handle kwargs) {
  const nb::object quick = Get(self, names().quick);
  const bool is_plain = At(quick, kIsPlain).is(nb::handle(Py_True));
  if ((is_plain && several_) || !is_quiet()) return CallSlowly(self, args, kwargs);
  if (is_plain) return call_plain(self, At(quick, kPlain), args, kwargs);
  Stream *const stream = stream_here();
  if (stream == nullptr) return CallSlowly(self, args, kwargs);
  const nb::handle caller = At(quick, kCaller);
  const nb::object &traits = nb::inst_ptr<Caller>(caller)->traits;
  const bool waits = traits.is_none() || Has(traits, kAwaitsResults) || Has(traits, kHasCustomCalls);
  return waits ? CallSlowly(self, args, kwargs)
               : call_with_effects(self, *stream, caller, At(quick, kThreaded), args, kwargs);
}

nb::object QuickCalls::call_plain(nb::handle self, nb::handle plain, nb::handle args, nb::handle kwargs) {
  try {
    const nb::object outs = Call(plain, {}, args, kwargs);
    return outs.is(elsewhere_) ? CallSlowly(self, args, kwargs) : outs;
  } catch (nb::python_error &error) {
    clear_up_(error.value());
    throw;
  }
}

nb::object QuickCalls::call_with_effects(nb::handle self, Stream &stream, nb::handle caller, nb::handle threaded,
                                         nb::handle args, nb::handle kwargs) {
  int64_t number = -1;
  nb::object left; // what the program has returned or raised, if Python has to see it
  try {
    number = stream.open(caller, stream.dispatching);
    Returned returned = stream.call(static_cast<uint32_t>(number), *nb::inst_ptr<Caller>(caller), stream.dispatching,
                                    threaded, args, kwargs, nb::none());
    if (!returned.outs.is(elsewhere_) && returned.awaited.is_none()) return returned.outs;
    left = nb::make_tuple(returned.outs, returned.awaited);
  } catch (nb::python_error &error) {
    left = nb::borrow(error.value());
  } catch (...) { // no memory is left, say
    AbandonCalls(stream.thread, stream.dispatching, 0);
    throw;
  }
  // Python code sees interrupts at each of its steps. If only `_finish` abandoned a call:
  //   1. An interrupt ends the program's call.
  //   2. A second one ends `_finish` at its first step.
  //   3. The epoch stays in `dispatching` for good, and barriers ignore whatever the thread calls from then on.
  try {
    const nb::object names = kwargs.is_valid() ? nb::borrow(kwargs) : nb::object(nb::dict());
    return self.attr("_finish")(stream.thread, number, left, args, names);
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
