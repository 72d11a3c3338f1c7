// What every call of a program goes through on the host, hence in C++: the program gets its token, is called, and what
// it returns is kept until it is over. All of it under Python's lock, which a call and the making and freeing of arrays
// may let go of for a while: a stream of several threads is whole whenever they do.
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

// What a program returned: its results, and its (traits, output token) if it may still be waiting for a callback, or
// fail in a custom call, else None.
struct Returned {
  nb::object outs, awaited;
};

// A thread's programs; `Stream` in Python has one.
class Stream {
public:
  // `host` answers what only Python knows; its methods are those of `StreamHost` in Python. It must not refer to this
  // stream, since Python's collector would not find such a cycle. `array_type`: that of JAX's arrays. `launching` is
  // held while a program is put on several devices; None: not by this stream. `would_trace`: the type of what a call
  // raises that may not trace.
  Stream(uint32_t thread, nb::handle host, nb::handle array_type, nb::handle launching, nb::handle would_trace);
  Stream(const Stream &) = delete;

  const uint32_t thread;
  nb::dict calls;              // by epoch
  nb::dict running;            // by epoch
  nb::dict unpolled;           // by epoch
  nb::dict stacks;             // by epoch: from where the program was called, where `take_stack` says it
  nb::list dispatching;        // the numbers of epochs whose calls have not returned, if it is one thread's
  int64_t newest_calling = -1; // the number of the newest epoch whose program calls back

  // The newest call, as (number, `Caller`), and the newest program with effects whose call has returned, as (number,
  // `Caller`, output token). None: there was none.
  nb::object newest_call() const;
  nb::object newest_program() const;

  // A dispatch: what is in force is kept under the number of its epoch, which is returned. Calls that share it with the
  // one before share its tuple (caller, standard output, context): their text is written in one go. No signal is seen
  // in here, so that an interrupt leaves nothing open that is not in `dispatching`.
  uint32_t open(nb::handle caller, nb::list dispatching);

  // The runtime token of an epoch, on the host.
  nb::object token(uint32_t number);

  // Calls the program of an epoch with `given`, or else with a runtime token for it.
  Returned call(uint32_t number, Caller &caller, nb::list dispatching, nb::handle threaded, nb::handle args,
                nb::handle kwargs, nb::handle given);

  // Calls a program without effects, which has no epoch and no token.
  nb::object call_plain(Caller &caller, nb::handle plain, nb::handle args, nb::handle kwargs);

  // Whether it is that of a thread which replays effects, and waits for no lock to launch.
  bool is_nested() const { return launching_.is_none(); }

  // The stream of the calling thread, as Python has said; null if there is none, or it is not one thread's. Python
  // keeps it for as long as the thread lives.
  static Stream *&here();

  // What returns the stack of the calling thread, at every call; null: none does.
  static PyObject *&take_stack();

private:
  static constexpr int kBlockBits = 8;

  const PrintOptions *find_options();
  bool several_devices();
  bool limits();
  struct FoundPool {
    nb::object pool; // None: the token is given from the host
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
  bool may_wait_ = false; // writing to its standard output
  // NumPy's print options in its context; null: those that native code does not follow.
  const PrintOptions *options_ = nullptr;
  nb::list tokens_; // of the block of epochs that is being handed out
  int64_t block_ = -1;
  std::deque<uint32_t> unclosed_;  // those of `running`, the oldest first, as their thread knows
  std::optional<bool> several_;    // whether programs may run on several devices
  std::optional<bool> one_device_; // whether there is one in all, of whatever platform
  std::optional<size_t> most_in_flight_;
  nb::object sharding_, pool_; // of the newest program on several devices: how its arguments lay, and the tokens there
  nb::object sharding_on_one_, pool_of_one_; // the same of the newest program whose arguments named one device
  nb::object host_, array_type_, launching_, would_trace_;
  nb::object on_one_device_; // the type of the shardings of arrays on one device
  nb::object copy_context_;  // that of `contextvars`: the stable ABI has no function for it
  nb::object sys_, stdout_;  // the variables of `sys`, and the name of one
};

// A call was left by an exception: fails what it opened, down to so many epochs. Here too no signal is seen, so that a
// second interrupt leaves nothing open either.
void AbandonCalls(uint32_t thread, nb::list dispatching, size_t depth);

// Notes that the calling thread, one of the drain's, begins or ends a function.
void NoteFunction(Kind kind, const Token &token, uint64_t site, int32_t device);

} // namespace effects
