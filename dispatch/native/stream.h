// What every call of a program goes through on the host, hence in C++: the program gets its place and its runtime
// token, is called, and what it returns is kept until it is over. All of it under Python's lock, which a call and the
// making and freeing of arrays may let go of for a while: a stream of several threads is whole whenever they do.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "handlers.h"

namespace effects {

namespace nb = nanobind;

// A jitted function, as far as its calls are concerned.
struct Caller {
  explicit Caller(std::string name, nb::object turn = nb::none()) : name(std::move(name)), turn(std::move(turn)) {}

  const std::string name;
  nb::object issued = nb::none(); // by the newest of its programs that has returned
  bool compiled = false;          // whether one of them is
  bool several = false;           // whether one of them is for several devices
  int compiling = 0;              // how many threads compile one of them
  const nb::object turn;          // a lock: one of these at a time
};

// Fields of Python's `ProgramTraits`.
enum IssuedField { kCalls = 1, kAwaits, kCustomCalls };
inline bool Says(nb::handle issued, IssuedField field) {
  return PyTuple_GET_ITEM(issued.ptr(), static_cast<Py_ssize_t>(field)) == Py_True;
}

// A runtime token on several devices, which one program at a time has.
struct Placed {
  nb::object array;
  nb::object memory;       // an array of the host's, if the devices read the token there, else None
  nb::object output_token; // of the program that has it
};

// By the user, who may delete all arrays of JAX's.
inline bool IsDeleted(const nb::object &array) { return nb::cast<bool>(array.attr("is_deleted")()); }

// Those on the devices of one sharding. To put an array on devices takes longer than to call a small program. But
// devices that use the host's memory read a token where it lies: once a program is over, its token is written anew for
// another.
class Pool {
public:
  // `make(number)` makes one: (array, memory).
  explicit Pool(nb::object make) : make_(std::move(make)) {}

  Placed take(uint32_t number) {
    while (!free_.empty() || find_over()) {
      Placed placed = std::move(free_.back());
      free_.pop_back();
      if (IsDeleted(placed.array)) continue; // and its memory is no more
      placed.memory[nb::int_(kEpoch)] = number;
      return placed;
    }
    const nb::object made = make_(number);
    return {made[0], made[1], {}};
  }

  // The program that had it is over.
  void give(Placed placed) {
    placed.output_token.reset();
    if (free_.size() < kKept && !placed.memory.is_none()) free_.push_back(std::move(placed));
  }

  // It is when this is ready.
  void give_after(Placed placed, nb::handle output_token) {
    placed.output_token = nb::borrow(output_token);
    if (in_use_.size() < kKept && !placed.memory.is_none()) in_use_.push_back(std::move(placed));
  }

private:
  static constexpr size_t kKept = 64;
  static constexpr int kEpoch = 1; // of the numbers of a token

  bool find_over() {
    if (in_use_.empty()) return false;
    Placed oldest = std::move(in_use_.front()); // first: another thread may look meanwhile
    in_use_.pop_front();
    if (IsDeleted(oldest.output_token)) return false; // nobody knows when it may be written
    if (nb::cast<bool>(oldest.output_token.attr("is_ready")())) {
      give(std::move(oldest));
      return !free_.empty();
    }
    in_use_.push_front(std::move(oldest));
    return false;
  }

  nb::object make_;
  std::vector<Placed> free_;
  std::deque<Placed> in_use_; // the oldest first
};

// Holds one of Python's locks; none if it is None.
class Held {
public:
  explicit Held(nb::object lock) : lock_(std::move(lock)) {
    if (!lock_.is_none()) lock_.attr("acquire")(); // an interrupt is seen there
  }
  Held(const Held &) = delete;
  ~Held() {
    if (lock_.is_none()) return;
    // Who was called may have given it back; see `begin_trace`. Then there is nothing to release.
    if (!nb::steal(PyObject_CallMethod(lock_.ptr(), "release", nullptr)).is_valid()) PyErr_Clear();
  }

private:
  const nb::object lock_;
};

// While one lives, tracing a function of the user's raises `WouldTrace` in the calling thread, or does not.
class UntracedRaises {
public:
  explicit UntracedRaises(bool does) { here = does; }
  UntracedRaises(const UntracedRaises &) = delete;
  ~UntracedRaises() { here = before_; }

  inline static thread_local bool here = false;

private:
  const bool before_ = here;
};

// While one lives, a thread compiles a program of a caller's.
class Compiling {
public:
  explicit Compiling(Caller &caller) : caller_(caller) { ++caller_.compiling; }
  Compiling(const Compiling &) = delete;
  ~Compiling() { --caller_.compiling; }

private:
  Caller &caller_;
};

// The output tokens of programs over several devices that may run, of all threads, the oldest first.
class InFlight {
public:
  void add(nb::handle output_token) { tokens_.push_back(nb::borrow(output_token)); }

  bool has_room(size_t most) const { return tokens_.size() < most; }

  // Waits until there is room, and then for half of them, since whoever waits has to be woken. XLA runs them one after
  // the other. Other threads may wait too, for the same program.
  void make_room(size_t most) {
    while (!has_room(most)) {
      const nb::object middle = tokens_[tokens_.size() / 2];
      try {
        if (!IsDeleted(middle) && !nb::cast<bool>(middle.attr("is_ready")())) middle.attr("block_until_ready")();
      } catch (nb::python_error &error) { // that the program failed is said elsewhere
        if (!error.matches(PyExc_Exception)) throw;
      }
      const auto at = std::find_if(tokens_.begin(), tokens_.end(), [&](const auto &token) { return token.is(middle); });
      for (auto over = at == tokens_.end() ? 0 : at - tokens_.begin() + 1; over > 0 && !tokens_.empty(); --over) {
        const nb::object token = std::move(tokens_.front()); // freed when it is out of here
        tokens_.pop_front();
      }
    }
  }

private:
  std::deque<nb::object> tokens_;
};
inline InFlight &in_flight() {
  static InFlight &all = *new InFlight; // for ever: Python may be gone before what is static
  return all;
}

// Whether two contexts hold the same values, by identity: equal ones may show differently, or not compare.
inline bool SameContext(nb::handle a, nb::handle b) {
  if (nb::len(a) != nb::len(b)) return false;
  if (nb::len(a) == 0) return true;
  for (nb::handle variable : a) {
    const int there = PySequence_Contains(b.ptr(), variable.ptr());
    if (there < 0) throw nb::python_error();
    if (there == 0 || !nb::object(a[variable]).is(nb::object(b[variable]))) return false;
  }
  return true;
}

// f(token, *args, **kwargs)
inline nb::object CallWithToken(nb::handle f, nb::handle token, nb::handle args, nb::handle kwargs) {
  std::vector<PyObject *> all{nullptr, token.ptr()}; // the first is for who is called
  const Py_ssize_t count = PyTuple_GET_SIZE(args.ptr());
  all.reserve(2 + static_cast<size_t>(count + PyDict_GET_SIZE(kwargs.ptr())));
  for (Py_ssize_t i = 0; i < count; ++i) all.push_back(PyTuple_GET_ITEM(args.ptr(), i));
  nb::object names;
  if (PyDict_GET_SIZE(kwargs.ptr()) != 0) {
    names = nb::steal(PySequence_Tuple(kwargs.ptr()));
    PyObject *name, *value;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, &name, &value);) all.push_back(value);
  }
  const size_t flags = static_cast<size_t>(count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET;
  PyObject *const returned = PyObject_Vectorcall(f.ptr(), all.data() + 1, flags, names.ptr());
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

// A thread's programs; `Stream` in Python has one.
class Stream {
public:
  // `host` answers what only Python knows; its methods are those of `StreamHost` in Python. It must not refer to this
  // stream, since Python's collector would not find such a cycle. `array_type`: that of JAX's arrays. `launching` is
  // held while a program is put on several devices, else they might get it and that of another thread in different
  // orders, and each wait for the other; None: not by this stream. `would_trace`: the type of what a call raises that
  // may not trace.
  Stream(uint32_t thread, nb::handle host, nb::handle array_type, nb::handle launching, nb::handle would_trace)
      : thread(thread), newest_(nb::make_tuple(nb::none(), nb::none(), nb::none())), host_(nb::borrow(host)),
        array_type_(nb::borrow(array_type)), launching_(nb::borrow(launching)), would_trace_(nb::borrow(would_trace)) {}

  const uint32_t thread;
  nb::dict calls;              // by epoch
  nb::dict running;            // by epoch
  int64_t newest_calling = -1; // the number of the newest epoch whose program calls back

  // A dispatch: what is in force is kept under the number of its epoch, which is returned. Calls that share it with the
  // one before share its tuple (caller, standard output, context): their text is written in one go. No signal is seen
  // in here, so that an interrupt leaves nothing open that is not in `dispatching`.
  uint32_t open(nb::handle caller, nb::list dispatching) {
    PyObject *const output = PySys_GetObject("stdout");
    const nb::object stdout_now = output != nullptr ? nb::borrow(output) : nb::object(nb::none());
    const nb::object context = nb::steal(PyContext_CopyCurrent());
    nb::object call = newest_;
    if (!call[0].is(caller) || !call[1].is(stdout_now) || !SameContext(call[2], context))
      newest_ = call = nb::make_tuple(caller, stdout_now, context);
    const uint32_t number = drain().open(thread, reinterpret_cast<uintptr_t>(call.ptr()));
    const nb::int_ key(number);
    dispatching.append(key);
    calls[key] = call;
    return number;
  }

  // The runtime token of an epoch, on the host.
  nb::object token(uint32_t number) {
    if (number >> kBlockBits != block_) {
      tokens_ = nb::cast<nb::list>(host_.attr("make_tokens")(number >> kBlockBits << kBlockBits, 1 << kBlockBits));
      block_ = number >> kBlockBits;
    }
    return tokens_[number & ((1 << kBlockBits) - 1)];
  }

  // Calls the program of an epoch with `given`, or else with a runtime token for it. Returns its results, and its
  // (issued, output token) if it may still be waiting for a callback, or fail in a custom call, else None.
  nb::tuple call(uint32_t number, Caller &caller, nb::list dispatching, nb::handle threaded, nb::tuple args,
                 nb::dict kwargs, nb::handle given) {
    const bool several = several_devices();
    const nb::object found = several && given.is_none() ? find_pool(args, kwargs) : nb::object(nb::none());
    Pool *const pool = found.is_none() ? nullptr : nb::cast<Pool *>(found);
    Placed placed;
    if (pool != nullptr) placed = pool->take(number);
    const nb::object runtime_token = pool != nullptr   ? placed.array
                                     : given.is_none() ? token(number)
                                                       : nb::borrow(given);
    const UntracedRaises no(false); // we may be inside of another call
    const nb::object returned = several && !launching_.is_none()
                                    ? launch(caller, pool != nullptr, threaded, runtime_token, args, kwargs)
                                    : CallWithToken(threaded, runtime_token, args, kwargs);
    forget_closed();
    nb::object awaited = nb::none();
    const bool closed = publisher().has_closed(thread, number);
    PyObject *issued, *output_token;
    Py_ssize_t at = 0;
    if (PyDict_Next(nb::object(returned[1]).ptr(), &at, &issued, &output_token)) { // one, if any
      caller.issued = nb::borrow(issued);
      if (Says(issued, kCalls)) newest_calling = number;
      const bool may_fail = Says(issued, kCustomCalls);
      const nb::tuple both = nb::make_tuple(nb::handle(issued), nb::handle(output_token));
      if (const nb::int_ key(number); !closed && calls.contains(key)) { // else the drain has seen its end
        running[key] = both;
        unclosed_.push_back(number);
      }
      if (may_fail || (!closed && Says(issued, kAwaits))) awaited = both;
      if (pool != nullptr)
        closed && !may_fail ? pool->give(std::move(placed)) : pool->give_after(std::move(placed), output_token);
    } else { // a program without effects closes nothing, and reads no token
      drain().fail(thread, number);
      if (pool != nullptr) pool->give(std::move(placed));
    }
    nb::del(dispatching[nb::len(dispatching) - 1]);
    return nb::make_tuple(returned[0], awaited);
  }

private:
  static constexpr int kBlockBits = 8;

  bool several_devices() {
    if (!several_) several_ = nb::cast<bool>(host_.attr("several_devices")());
    return *several_;
  }

  // Calls a program of which `over_several` says whether its arguments lie on several devices. One for several devices
  // is compiled first, and then put on them: nobody waits for a trace, since the function may wait for another thread.
  nb::object launch(Caller &caller, bool over_several, nb::handle threaded, nb::handle token, nb::handle args,
                    nb::handle kwargs) {
    const auto waits = [&] { return caller.several || over_several; };
    std::optional<Compiling> compiling;
    bool gave_up = false;
    if (caller.compiled && waits()) {
      std::optional<Held> held;
      take_turn(held);
      if (caller.compiling == 0) { // else JAX may let us wait for who does that
        const UntracedRaises yes(true);
        try {
          return put(threaded, token, args, kwargs);
        } catch (nb::python_error &error) {
          if (!error.matches(would_trace_)) throw;
          gave_up = true;
        }
      }
      compiling.emplace(caller); // before others call it
    }
    if (!caller.compiled) compiling.emplace(caller);
    if (compiling) {
      const nb::object several = host_.attr("compile")(caller.turn, threaded, token, args, kwargs, gave_up);
      caller.several = caller.several || nb::cast<bool>(several);
      caller.compiled = true;
      compiling.reset();
    }
    if (!waits()) return CallWithToken(threaded, token, args, kwargs);
    std::optional<Held> held;
    take_turn(held);
    return put(threaded, token, args, kwargs);
  }

  // Whether only so many programs may run over several devices at a time.
  bool limits() {
    if (!most_in_flight_) most_in_flight_ = nb::cast<size_t>(host_.attr("most_in_flight")());
    return *most_in_flight_ != 0;
  }

  // Waits until a program may be put on several devices, and keeps others from that.
  void take_turn(std::optional<Held> &held) {
    for (;;) {
      if (limits()) in_flight().make_room(*most_in_flight_);
      held.emplace(launching_);
      if (!limits() || in_flight().has_room(*most_in_flight_)) return;
      held.reset(); // while we wait for room, others may have their turn
    }
  }

  // Puts a program on several devices.
  nb::object put(nb::handle threaded, nb::handle token, nb::handle args, nb::handle kwargs) {
    nb::object returned = CallWithToken(threaded, token, args, kwargs);
    PyObject *issued, *output_token;
    Py_ssize_t at = 0;
    if (limits() && PyDict_Next(nb::object(returned[1]).ptr(), &at, &issued, &output_token))
      in_flight().add(output_token);
    return returned;
  }

  // The pool of the devices that run the program, which are those of its arguments; None if that is one device.
  nb::object find_pool(nb::handle args, nb::handle kwargs) {
    if (sharding_.is_valid()) {
      for (Py_ssize_t i = 0, count = PyTuple_GET_SIZE(args.ptr()); i < count; ++i) {
        const nb::handle arg = PyTuple_GET_ITEM(args.ptr(), i);
        if (arg.type().is(array_type_) && arg.attr("sharding").is(sharding_)) return pool_;
      }
    }
    const nb::object found = host_.attr("find_pool")(args, kwargs);
    if (found.is_none()) return found;
    nb::object sharding = found[0], pool = found[1];
    std::swap(sharding_, sharding); // both, before what they were is freed
    std::swap(pool_, pool);
    return found[1];
  }

  // What a program returned that has published its end: nothing can fail any more, and its memory is taken next.
  void forget_closed() {
    while (!unclosed_.empty()) {
      const nb::int_ oldest(unclosed_.front());
      const bool runs = running.contains(oldest);
      if (runs && calls.contains(oldest) && !publisher().has_closed(thread, unclosed_.front())) return;
      unclosed_.pop_front();
      if (runs && PyDict_DelItem(running.ptr(), oldest.ptr()) != 0) PyErr_Clear(); // the drain may have been here
    }
  }

  nb::object newest_; // the newest call
  nb::list tokens_;   // of the block of epochs that is being handed out
  int64_t block_ = -1;
  std::deque<uint32_t> unclosed_; // those of `running`, in turn, as their thread knows
  std::optional<bool> several_;   // whether programs may run on several devices
  std::optional<size_t> most_in_flight_;
  nb::object sharding_, pool_;    // those of the newest program on several devices
  nb::object host_, array_type_, launching_, would_trace_;
};

// A call was left by an exception: fails what it opened, down to so many epochs. Here too no signal is seen, so that a
// second interrupt leaves nothing open either.
inline void AbandonCalls(uint32_t thread, nb::list dispatching, size_t depth) {
  for (size_t left = nb::len(dispatching); left > depth; --left) {
    drain().fail(thread, nb::cast<uint32_t>(dispatching[left - 1]));
    nb::del(dispatching[left - 1]);
  }
}

} // namespace effects
