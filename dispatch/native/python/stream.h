// The host's part of every call, hence in C++: the program gets its token, is called, and its output token is kept
// until it is over. All under Python's lock, which a call, and making or freeing an array, may release for a while: a
// shared stream is consistent whenever they do.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "../text/options.h"
#include "caller.h"
#include "launch.h"
#include "placed_tokens.h"

namespace effects {

namespace nb = nanobind;

// A program's results, and its (traits, output token) if it may still wait for a callback or fail in a custom call,
// else None.
struct Returned {
  nb::object outs, awaited;
};

// A thread's programs; `Stream` in Python has one.
class Stream {
public:
  // `host`: a `StreamHost` of Python. It must not refer to this stream, since Python's collector would not find such a
  // cycle. `array_type`: the type of JAX's arrays. `launch_lock`: the lock held while a program is launched on several
  // devices; None: this stream launches without it. `would_trace`: the error of a call that must not trace.
  Stream(uint32_t thread, nb::handle host, nb::handle array_type, nb::handle launch_lock, nb::handle would_trace);
  Stream(const Stream &) = delete;

  const uint32_t thread;
  nb::dict calls;              // by epoch
  nb::dict running;            // by epoch
  nb::dict unpolled;           // by epoch
  nb::dict stacks;             // by epoch: the Python stack of the program's call, from `take_stack`
  nb::list dispatching;        // the numbers of epochs whose calls have not returned, unless threads share the stream
  int64_t newest_calling = -1; // the number of the newest epoch whose program calls back

  // The newest call, as (number, `Caller`), and the newest program with effects whose call has returned, as (number,
  // `Caller`, output token). None: there was none.
  nb::object newest_call() const;
  nb::object newest_program() const;

  // A dispatch: keeps (caller, standard output, context) under the number of its epoch, which is returned. A call with
  // the same three as the call before shares its tuple: their text is written in one go. No signal is handled in here,
  // so an interrupt leaves no open epoch that is not in `dispatching`.
  uint32_t open(nb::handle caller, nb::list dispatching);

  // The runtime token of an epoch, on the host.
  nb::object token(uint32_t number);

  // Calls the program of an epoch with `given`, or else with a runtime token for it.
  Returned call(uint32_t number, Caller &caller, nb::list dispatching, nb::handle threaded, nb::handle args,
                nb::handle kwargs, nb::handle given);

  // Calls a program without effects, which has no epoch and no token.
  nb::object call_plain(Caller &caller, nb::handle plain, nb::handle args, nb::handle kwargs);

  // True if its thread replays effects, and launches without a lock.
  bool is_nested() const { return launch_lock_.is_none(); }

  // The stream of the calling thread, set by Python; null if there is none, or it is shared. Python keeps it alive as
  // long as the thread.
  static Stream *&here();

  // The function that returns the stack of the calling thread at every call; null: there is none.
  static PyObject *&take_stack();

private:
  static constexpr int kBlockBits = 8;

  const PrintOptions *find_options();
  bool several_devices();
  bool limits();
  struct FoundPool {
    nb::object pool; // None: the token is in host memory
    bool over_several = false;
    bool is_callers = false; // the arguments name no device
  };
  FoundPool find_pool(const Caller &caller, nb::handle args, nb::handle kwargs);
  nb::object first_pool(Caller &caller);
  void note_place(Caller &caller, nb::handle output_token);
  nb::object pool_of_one();
  nb::object pool_on(nb::object sharding);
  bool spans_devices(nb::handle args, nb::handle kwargs);
  bool has_known_sharding(nb::handle args);
  bool on_one_device(nb::handle args, nb::object *committed = nullptr);

  void compile(Caller &caller, nb::handle program, nb::handle token, nb::handle args, nb::handle kwargs, bool gave_up);
  nb::object launch(Caller &caller, bool over_several, nb::handle program, nb::handle token, nb::handle args,
                    nb::handle kwargs);
  void acquire_launch_lock(std::optional<PyLockGuard> &guard);
  nb::object put(nb::handle program, nb::handle token, nb::handle args, nb::handle kwargs);

  nb::object keep(uint32_t number, Caller &caller, nb::handle traits, nb::handle output_token, bool closed);
  void set_newest(uint32_t number, Caller &caller, nb::handle output_token);
  void forget_closed();

  uint32_t newest_number_ = 0;             // of the newest program with effects
  nb::object newest_caller_, newest_token_; // and its caller and output token
  nb::object newest_;     // the newest call
  uint32_t opened_ = 0;   // its number
  bool may_wait_ = false; // writing to the newest call's standard output
  // NumPy's print options in its context; null: native code does not follow them.
  const PrintOptions *options_ = nullptr;
  nb::list tokens_; // of the current block of epochs
  int64_t block_ = -1;
  std::deque<uint32_t> unclosed_;  // the epochs of `running`, the oldest first
  std::optional<bool> several_;    // true if programs may run on several devices
  std::optional<bool> one_device_; // true if there is exactly one, over all platforms
  std::optional<size_t> most_in_flight_;
  nb::object sharding_, pool_; // of the newest program on several devices: its arguments' sharding, and the pool there
  nb::object sharding_on_one_, pool_of_one_; // the same of the newest program whose arguments named one device
  nb::object host_, array_type_, launch_lock_, would_trace_;
  nb::object on_one_device_; // the type of the shardings of arrays on one device
  nb::object copy_context_;  // `contextvars.copy_context`: the stable ABI has no function for it
  nb::object sys_, stdout_;  // the variables of `sys`, and the name of one
};

// A call was left by an exception: fails the epochs that it opened, down to `depth` entries of `dispatching`. No signal
// is handled here either, so a second interrupt leaves no epoch open.
void AbandonCalls(uint32_t thread, nb::list dispatching, size_t depth);

// Notes that the calling drain thread begins or ends a function.
void NoteFunction(Kind kind, const Token &token, uint64_t site, int32_t device);

} // namespace effects
