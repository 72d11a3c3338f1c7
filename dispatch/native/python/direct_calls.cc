#include "direct_calls.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "../xla/runtime.h"
#include "batch.h"
#include "call.h"
#include "dispatcher.h"

namespace effects {
namespace {

constexpr int kLook = 64; // the number of calls between two checks for events that no batch brings

nb::object Name(const char *name) { return nb::steal(PyUnicode_InternFromString(name)); }

bool IsTrue(nb::handle object) {
  const int is_true = PyObject_IsTrue(object.ptr());
  if (is_true < 0) throw nb::python_error();
  return is_true != 0;
}

template <size_t N>
nb::object Vectorcall(nb::handle f, PyObject *(&args)[N]) { // the first place is not an argument
  PyObject *const returned = PyObject_Vectorcall(f.ptr(), args + 1, (N - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

void Set(nb::dict &dict, nb::handle key, nb::handle value) {
  if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) != 0) throw nb::python_error();
}

// Returns true if it was there.
bool Pop(nb::dict &dict, nb::handle key) {
  if (PyDict_DelItem(dict.ptr(), key.ptr()) == 0) return true;
  PyErr_Clear();
  return false;
}

nb::object CallOne(nb::handle f, nb::handle arg) {
  PyObject *args[] = {nullptr, arg.ptr()};
  return Vectorcall(f, args);
}

nb::handle At(nb::handle tuple, Py_ssize_t i) { return NB_TUPLE_GET_ITEM(tuple.ptr(), i); }

double Monotonic() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

// A callback's call on this path.
struct DirectCalls::Call {
  uint32_t run; // as in `Batch`
  uint64_t run_number;
  uint32_t reply;
  nb::object site, direct; // `direct`: its `Site.direct_call`
  nb::object in_force;     // when its program was called: a `Call` in Python
  nb::object key, token, device, payload;
  RecordHeader header;
};

// A function's results as bytes, or its error. Made and freed under Python's lock.
class DirectCalls::Result {
public:
  Result() = default;
  Result(const Result &) = delete;
  ~Result() { clear(); }
  // Adds the bytes of an array. Small arrays are copied, since the array may change once Python's lock is released.
  // Returns true if the bytes are accessible.
  bool take(nb::handle array) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear(); // the array is not contiguous
      return false;
    }
    const auto size = static_cast<size_t>(buffer.len);
    if (size < kSmall) {
      spans_.push_back({copied_.emplace_back(static_cast<const char *>(buffer.buf), size).data(), size});
      PyBuffer_Release(&buffer);
    } else {
      spans_.push_back({buffer.buf, size});
      held_.push_back(buffer);
    }
    return true;
  }
  void clear() {
    for (Py_buffer &buffer : held_) PyBuffer_Release(&buffer);
    held_.clear();
    spans_.clear();
  }
  void fail(std::string why) {
    clear();
    why_none_ = std::move(why);
  }
  Answer answer() const { return {spans_, why_none_}; }

private:
  static constexpr size_t kSmall = 1 << 12;

  std::deque<std::string> copied_; // a deque: its elements do not move
  std::vector<Py_buffer> held_;
  std::vector<Span> spans_;
  std::string why_none_;
};

DirectCalls::DirectCalls(nb::handle host, double patience_s)
    : patience_s_(patience_s), until_look_(kLook), stream_of_(host.attr("stream_of")), site_of_(host.attr("site_of")),
      start_thread_(host.attr("start_thread")), look_(host.attr("look")), take_results_(host.attr("take_results")),
      fail_(host.attr("fail")), clear_frames_(host.attr("clear_frames")), is_clear_(host.attr("is_clear")),
      programs_(host.attr("programs")), frames_(host.attr("frames")), runs_(nb::borrow<nb::dict>(host.attr("runs"))),
      running_(nb::borrow<nb::dict>(host.attr("running"))), array_type_(nb::module_::import_("numpy").attr("ndarray")),
      eager_(Name("eager")), calls_(Name("calls")), direct_call_(Name("direct_call")), dtype_(Name("dtype")),
      shape_(Name("shape")), copy_(Name("copy")), run_(Name("run")) {}

nb::object DirectCalls::next_batch(nb::object wait_for_nested, nb::dict nested) {
  Batch batch;
  {
    nb::gil_scoped_release release;
    batch = take();
  }
  for (Call call; find(batch, call);) {
    if (--until_look_ == 0) {
      until_look_ = kLook;
      look_();
    }
    if (!answer(call, batch, wait_for_nested, nested)) return nb::none();
  }
  return ToPython(batch);
}

Batch DirectCalls::take() {
  return drain().next_batch(std::chrono::milliseconds(static_cast<int64_t>(patience_s_ * 1e3)));
}

// True if no program has failed, and neither a handler nor a capture wants records.
bool DirectCalls::is_clear() {
  const uint64_t attention = quick_calls().attention(); // read before the check, as a call does
  if (attention != clear_since_ && IsTrue(is_clear_())) clear_since_ = attention;
  return attention == clear_since_;
}

// The call of a batch that is a single call for this path; none for any other batch.
bool DirectCalls::find(const Batch &batch, Call &call) try {
  if (closed_ || batch.items.size() != 1 || !batch.has_run() || batch.stopped) return false;
  if (!batch.finished.empty() || !batch.complete.empty() || !batch.forgotten.empty()) return false;
  const Item &item = batch.items.front();
  if (item.kind != ItemKind::kRecords || item.count != 1 || item.reply == 0 || item.info.failed) return false;
  RecordHeader &header = call.header;
  std::memcpy(&header, item.data.data(), sizeof header);
  if (IsOfSeveral(header) || !is_clear()) return false;
  const nb::object stream = CallOne(stream_of_, nb::int_(item.info.thread));
  if (stream.is_none() || IsTrue(Get(stream, eager_))) return false;
  const nb::object epoch = nb::int_(item.info.epoch), calls = Get(stream, calls_);
  call.in_force = nb::borrow(PyDict_GetItemWithError(calls.ptr(), epoch.ptr()));
  call.site = CallOne(site_of_, nb::int_(header.site));
  if (!call.in_force.is_valid() || call.site.is_none()) return false;
  call.direct = Get(call.site, direct_call_);
  if (call.direct.is_none()) return false;
  call.run = batch.run;
  call.run_number = batch.run_number;
  call.reply = header.reply;
  call.key = nb::make_tuple(item.info.thread, epoch);
  call.token = ToTuple(header.token);
  call.device = nb::int_(header.device);
  call.payload = nb::bytes(item.data.data() + sizeof header, header.payload_size);
  return true;
} catch (nb::python_error &error) {
  error.discard_as_unraisable(site_of_);
  return false;
}

// Calls the function and answers. Then `batch` is the leader's next batch. Returns false if another thread leads now.
bool DirectCalls::answer(const Call &call, Batch &batch, nb::handle wait_for_nested, nb::handle nested) {
  const nb::object me = nb::steal(PyLong_FromUnsignedLong(PyThread_get_thread_ident()));
  const nb::tuple asked = nb::make_tuple(call.key, call.site, call.token, call.device, call.reply, call.payload);
  const nb::object under_way = nb::steal(PyLong_FromVoidPtr(asked.ptr()));
  Set(runs_, under_way, nb::make_tuple(call.run, call.run_number, asked));
  Result result;
  const auto note = [&](Kind kind) { NoteFunction(kind, call.header.token, call.header.site, call.header.device); };
  note(Kind::kBegun);
  try {
    if (wake_up().offer() == 0) start_thread_();
    const nb::object since = nb::float_(Monotonic());
    Set(running_, me, nb::make_tuple(call.site, call.key, call.token, call.reply, since));
    take_results(result, call, run(call, wait_for_nested, nested));
  } catch (nb::python_error &error) {
    result.fail(fail(call, error, wait_for_nested));
  }
  note(Kind::kDone);
  Pop(running_, me); // absent if the function waited after the threads had ended
  if (PyDict_Size(frames_.ptr()) != 0) clear_frames_();
  const bool suspended = Pop(runs_, under_way);
  nb::gil_scoped_release release;
  if (suspended) drain().resume(call.run, call.run_number);
  // The program may continue in this thread up to its next call, which is then the next batch.
  replies().answer(call.reply, result.answer());
  const bool leads = wake_up().reclaim();
  if (leads) batch = take();
  return leads;
}

// The function's answer. Waits for the programs that it has called, even if it raises: their effects come at its place.
nb::object DirectCalls::run(const Call &call, nb::handle wait_for_nested, nb::handle nested) {
  PyObject *context = At(call.in_force, 2).ptr();
  const nb::object copied = nb::steal(PyObject_VectorcallMethod(copy_.ptr(), &context, 1, nullptr)); // its own
  if (!copied.is_valid()) throw nb::python_error();
  const nb::handle places = At(call.direct, 1);
  const auto count = NB_TUPLE_GET_SIZE(places.ptr());
  std::vector<nb::object> arrays;
  std::vector<PyObject *> args{copied.ptr(), At(call.direct, 0).ptr()};
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::handle place = At(places, i);
    PyObject *array[] = {nullptr, At(place, 0).ptr(), At(place, 1).ptr(), call.payload.ptr(), At(place, 2).ptr()};
    arrays.push_back(Vectorcall(array_type_, array));
    args.push_back(arrays.back().ptr());
  }
  const auto wait_now = [&] {
    if (PyDict_Size(nested.ptr()) != 0 || PyDict_Size(programs_.ptr()) != 0) CallOne(wait_for_nested, call.key);
  };
  const nb::object returned = nb::steal(PyObject_VectorcallMethod(run_.ptr(), args.data(), args.size(), nullptr));
  if (!returned.is_valid()) {
    nb::python_error error; // takes over the current exception
    wait_now();
    throw error;
  }
  wait_now();
  return returned;
}

// `take_results` in Python takes the values that native code does not, and raises their errors.
void DirectCalls::take_results(Result &result, const Call &call, nb::handle returned) {
  if (take_leaves(result, call, returned)) return;
  result.clear();
  PyObject *args[] = {nullptr, call.site.ptr(), returned.ptr()};
  for (nb::handle bytes : nb::borrow<nb::list>(Vectorcall(take_results_, args))) result.take(bytes);
}

// Returns false for an unexpected structure or type.
bool DirectCalls::take_leaves(Result &result, const Call &call, nb::handle returned) {
  const nb::handle flatten = At(call.direct, 2), types = At(call.direct, 3);
  if (types.is_none()) return false;
  nb::object leaves = nb::make_tuple(returned);
  if (!flatten.is_none()) {
    PyObject *whole = returned.ptr();
    leaves = nb::steal(PyObject_Vectorcall(flatten.ptr(), &whole, 1, nullptr));
  }
  for (Py_ssize_t i = 0; leaves.is_valid() && i < NB_TUPLE_GET_SIZE(types.ptr()); ++i) {
    const nb::object leaf = nb::steal(PySequence_GetItem(leaves.ptr(), i));
    if (!leaf.is_valid() || !take_leaf(result, At(types, i), leaf)) leaves.reset();
  }
  PyErr_Clear();
  return leaves.is_valid();
}

// An array of the expected type is taken as it is, and a Python number by the table of the site.
bool DirectCalls::take_leaf(Result &result, nb::handle expected, nb::handle leaf) {
  auto *const type = reinterpret_cast<PyObject *>(Py_TYPE(leaf.ptr()));
  const nb::handle pack = PyDict_GetItemWithError(At(expected, 2).ptr(), type);
  if (!pack.is_valid()) return false;
  if (!pack.is_none()) {
    PyObject *number = leaf.ptr();
    const nb::object packed = nb::steal(PyObject_Vectorcall(pack.ptr(), &number, 1, nullptr));
    return packed.is_valid() && result.take(packed); // invalid if the number does not fit
  }
  if (!Get(leaf, dtype_).is(At(expected, 0))) return false;
  return PyObject_RichCompareBool(Get(leaf, shape_).ptr(), At(expected, 1).ptr(), Py_EQ) == 1 && result.take(leaf);
}

// The function has raised, or returned a wrong value: ends its program. Returns the error for the device.
std::string DirectCalls::fail(const Call &call, nb::python_error &error, nb::handle wait_for_nested) try {
  PyObject *args[] = {nullptr,         error.value().ptr(), call.in_force.ptr(), call.key.ptr(), wait_for_nested.ptr(),
                      call.site.ptr(), call.token.ptr(),    call.device.ptr()};
  return nb::cast<std::string>(Vectorcall(fail_, args));
} catch (const std::exception &ours) {
  return ours.what();
}

} // namespace effects
