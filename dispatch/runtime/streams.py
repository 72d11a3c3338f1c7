"""A stream: a thread's sequence of epochs, one for every program that it dispatched.

A program's runtime token holds the stream's and the epoch's number. The token comes from the host, so no program waits
for another's token.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects._config import Config, config
from effects._jax import (
    Array,
    Placing,
    committed_device_of_call,
    count_fast_paths,
    default_device,
    forget_fast_paths,
    is_addressable,
    launches_take_threads,
    only_device,
    sharding_of_call,
    with_flat_arguments,
)
from effects._model.site import Site
from effects._model.text import FOLLOWS_NUMPY, print_options
from effects._model.wire import (
    EPOCH,
    FIRST_NESTED_THREAD,
    PLACED_THREAD,
    STREAM,
    TOKEN_LENGTH,
    Kind,
    ProgramTraits,
    stream_of,
)
from effects.dispatch.runtime.outputs import may_wait, share
from effects.lowering.native_module import native

# Runtime tokens: memory of the host, or arrays on devices.
#
# The native stream reuses the arrays from program to program: see `Pool` in `dispatch/native/python/placed_tokens.h`.


def _place(thread: int, placing: Placing, cell: int, number: int) -> Any:
    """A token on devices: a cell's token, or an epoch's if `cell` is 0."""
    token = token_memory(PLACED_THREAD, cell, 1) if cell else token_memory(thread, number, 1)
    return placing.place(token[0])


_PLACES = 32
"""The number of shardings and devices for which a thread keeps tokens. One more drops them all: crude, but rare."""


def token_memory(thread: int, first: int, count: int) -> np.ndarray:
    """The runtime tokens of `count` epochs from `first` on. Each is aligned to 64 bytes, so that XLA uses it without a
    copy."""
    memory = np.zeros((count + 1) * 64, np.uint8)
    start = -memory.ctypes.data % 64
    tokens = memory[start : start + count * 64].view(np.uint32).reshape(-1, 16)[:, :TOKEN_LENGTH]
    tokens[:, STREAM] = stream_of(thread)
    tokens[:, EPOCH] = np.arange(first, first + count)
    return tokens


class WouldTrace(Exception):
    """Raised by a call in place of a forbidden trace: see `dispatch/native/python/launch.h`."""


_NO_LOCK = contextlib.nullcontext()


class Stream:
    """One thread's epochs.

    `open`, `token`, `call`, `call_plain` and `set_here` are methods of the native stream, since every call uses them.
    `set_here` makes this stream the calling thread's.

    `calls` is keyed by epoch number and holds the epochs that have not ended, each as (`Caller`, standard output,
    context). The dispatching thread adds, drain threads remove. Numbers wrap around only after four billion epochs, so
    no two open epochs have the same number.

    `running` is keyed by epoch number too, and holds the epochs of `calls` whose program may still fail, as
    (`ProgramTraits`, output token). The output token is ready when the program is over, and has an error if the program
    failed. The dispatching thread adds after the call has returned; that thread and drain threads remove.

    `unpolled` is keyed by epoch number and holds programs that call native handlers of the user's and have not been
    polled for a failure, each as (name, `ProgramTraits`, output token). The dispatching thread adds. The thread that
    waits for the program, or calls the next one, removes.

    `stacks` is keyed by epoch number: the Python stack of the program's call, if native code was told to keep stacks.
    The native stream adds, drain threads remove.

    `eager` is keyed by epoch number: the sites of effects outside of programs. A site is kept for its epoch only, since
    every call may make a new site.

    `unreleased` is keyed by epoch number: for an epoch that is complete but waits for other epochs or for running
    functions, the order domains that still hold records. Drain threads write.

    `entering` is keyed by epoch number: the functions of calls from Python code that have not returned, each with the
    number of JAX's fast paths for it when the call began. The calling thread writes it.

    `dispatching` holds the numbers of the epochs whose calls have not returned, the outermost first. It belongs to the
    calling thread, which writes it.

    `async_caller` is the number of the thread that started the asynchronous callback running in this stream, else None.
    While it is set, the effects of the stream are held back; `fx.async_done` releases them.
    """

    is_shared: bool = False
    """True if several threads share the stream."""

    open: Callable[[native.Caller, list[int]], int]
    token: Callable[[int], np.ndarray]
    call: Callable[..., tuple[Any, Any]]
    call_plain: Callable[[native.Caller, Any, tuple[Any, ...], dict[str, Any]], Any]
    set_here: Callable[[], None]

    def __init__(self, thread: int, launch_lock: Any):
        """`launch_lock`: the lock for launches on several devices; None if this stream launches without the lock."""
        self.thread = thread
        self._native = native.Stream(thread, StreamHost(thread), Array, launch_lock, WouldTrace)
        self.open, self.token, self.call = self._native.open, self._native.token, self._native.call
        self.call_plain, self.set_here = self._native.call_plain, self._native.set_here
        self.calls: dict[int, Any] = self._native.calls
        self.running: dict[int, tuple[ProgramTraits, Any]] = self._native.running
        self.unpolled: dict[int, tuple[str, ProgramTraits, Any]] = self._native.unpolled
        self.stacks: dict[int, Any] = self._native.stacks
        self.eager: dict[int, Site] = {}
        self.unreleased: dict[int, set[int]] = {}
        self.entering: dict[int, tuple[Any, int]] = {}
        self.is_nested: bool = launch_lock is None
        self.dispatching: list[int] = self._native.dispatching
        self.async_caller: int | None = None
        self._ended = -1  # the number of the newest program that was seen to be over

    def hold(self, caller: int) -> None:
        self.async_caller = caller
        native.hold(self.thread)

    def let_go(self) -> None:
        native.let_go(self.thread)
        self.async_caller = None  # last: then the stream may be forgotten

    @property
    def newest_calling(self) -> int:
        """The number of the newest epoch whose program has callbacks; -1 if there was none."""
        return self._native.newest_calling

    def note_ended(self, number: int) -> None:
        """Notes in a run file that a program is over, or never runs."""
        native.note(Kind.ENDED, (stream_of(self.thread), number, 0, 0))

    def running_newest(self) -> tuple[int, native.Caller, Any] | None:
        """Returns the newest program with effects as (number, `Caller`, output token) if it still runs, else None. Its
        effects may all be visible by then. The output token is None if the call has not returned. Also notes the end
        of the program in the run file, once."""
        call = self._native.newest_call
        if call is not None and call[0] not in self.calls and call[0] in self.unreturned():
            return *call, None
        if (newest := self._native.newest_program) is None or newest[0] == self._ended:
            return None
        number, _, output_token = newest
        if output_token.is_deleted():
            return None  # the token is gone, so its state is unknown
        if not output_token.is_ready():
            return newest
        self._ended = number
        self.note_ended(number)
        return None

    def dispatch_lock(self, calls_handlers: bool) -> Any:
        """The lock that a thread holds from taking its epoch's number until it has called the program.

        `calls_handlers`: True if the program calls native handlers of the user's that are ordered."""
        return _NO_LOCK

    def unreturned(self) -> list[int]:
        """The numbers of the epochs whose calls have not returned, of all threads."""
        return self.dispatching

    def oldest_unreturned(self) -> int:
        """The number of the oldest call that has not returned, or else of the next one."""
        newest = self._native.newest_call
        return min([0 if newest is None else newest[0] + 1, *self.unreturned()])

    def thread_of(self, number: int) -> object:
        """The `UserThread` that opened an epoch, if threads share the stream."""
        return None

    def fail(self, number: int) -> None:
        """The program failed or never ran: nothing more will come from it."""
        native.fail(self.thread, number)
        self.note_ended(number)

    def claim(self, number: int) -> tuple[str, ProgramTraits, Any] | None:
        """Takes a program out of `unpolled`, so that only the caller polls it. Returns the entry, or None if another
        thread has taken it."""
        return self.unpolled.pop(number, None)

    def drop(self, first: int, count: int) -> None:
        """Drops epochs that have ended. A drain thread calls it."""
        for number in range(first, first + count):
            number &= 0xFFFFFFFF
            self.calls.pop(number, None)  # an interrupted call may not have added its entry
            if self.running:
                self.running.pop(number, None)
            if self.eager:
                self.eager.pop(number, None)
            if self.stacks:
                self.stacks.pop(number, None)
            if self.unreleased:
                self.unreleased.pop(number, None)


def traits_of(stream: Stream, number: int) -> ProgramTraits | None:
    """The traits of an epoch that has not ended; None if they are not known."""
    if (running := stream.running.get(number)) is not None:
        return running[0]
    if (site := stream.eager.get(number)) is not None:
        return ProgramTraits((site.effect.name,), False, False)
    call = stream.calls.get(number)
    return call[0].traits if call is not None else None


class SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    is_shared: bool = True

    def __init__(self, thread: int, launch_lock: Any, this_thread: Callable[[], object]):
        """`this_thread()`: the `UserThread` that calls."""
        self._dispatching: dict[int, list[int]] = {}  # by the thread's identity
        self._threads: dict[int, object] = {}
        """By epoch number, the `UserThread`. TODO: an entry kept by `drop` for a poll is never removed: 100 bytes."""
        self._this_thread = this_thread
        self._launch_lock = launch_lock
        super().__init__(thread, launch_lock)
        self.open: Callable[[native.Caller, list[int]], int] = self._open

    def _open(self, caller: native.Caller, dispatching: list[int]) -> int:
        number = self._native.open(caller, dispatching)
        self._threads[number] = self._this_thread()
        return number

    def drop(self, first: int, count: int) -> None:
        super().drop(first, count)
        for number in range(first, first + count):
            if (number & 0xFFFFFFFF) not in self.unpolled:  # else a later failure needs the thread
                self._threads.pop(number & 0xFFFFFFFF, None)

    def thread_of(self, number: int) -> object:
        return self._threads.get(number)

    def dispatch_lock(self, calls_handlers: bool) -> Any:
        """Devices run programs in launch order, and a program that waits for a callback blocks those launched after it.
        The callback waits for all epochs before its own. So programs must be launched in the order of their epochs, or
        they deadlock. Ordered handlers run in launch order too, on any number of devices."""
        return self._launch_lock if calls_handlers or several_devices() else _NO_LOCK

    @property
    def dispatching(self) -> list[int]:  # type: ignore[override]
        return self._dispatching.setdefault(threading.get_ident(), [])

    @dispatching.setter
    def dispatching(self, value: list[int]) -> None:
        self._dispatching[threading.get_ident()] = value

    def unreturned(self) -> list[int]:
        return [number for numbers in list(self._dispatching.values()) for number in list(numbers)]


class StreamHost:
    """The functions that a native stream calls in Python. It must not refer to the stream: Python's collector does not
    see the references of a native object, so the cycle would never be freed."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, native.Pool | None] = {}  # of tokens on devices, by sharding, or device

    def make_tokens(self, first: int, count: int) -> list[np.ndarray]:
        """The runtime tokens of `count` epochs from `first` on, in host memory."""
        return list(token_memory(self._thread, first, count))

    def one_device(self) -> bool:
        """True if the process has exactly one device, over all platforms. Called once."""
        return only_device() is not None

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool | None]:
        """The sharding of these arguments, if they lie on several devices, and the pool of tokens on the devices that
        the arguments are committed to. The pool is None if they are uncommitted, or no device is addressable."""
        sharding, device = sharding_of_call(args, kwargs), None
        if sharding is None:
            device = committed_device_of_call(args, kwargs)
        return sharding, self._pool(device if sharding is None else sharding)

    def find_pool_on(self, sharding: Any) -> native.Pool | None:
        """The pool of tokens on the one device of a sharding. None if the sharding has several devices: tokens there
        would be committed, and would decide where the program runs."""
        return self._pool(next(iter(sharding.device_set))) if sharding.num_devices == 1 else None

    def find_first_pool(self) -> native.Pool | None:
        """The pool of tokens on the default device, for programs whose arguments are uncommitted. None with several
        processes: JAX's fast path refuses an array of this process in a program that runs on another process's device
        only."""
        return self._pool(default_device()) if jax.process_count() == 1 else None

    def find_pool_of_one(self) -> native.Pool | None:
        """The pool of tokens on the only device. Called once."""
        return self._pool(only_device())

    def _pool(self, where: Any) -> native.Pool | None:
        if where is None:
            return None
        if where not in self._pools:
            if len(self._pools) == _PLACES:
                self._pools.clear()
            make = functools.partial(_place, self._thread, Placing(where))
            # If no device is addressable, no device of this process reads the token.
            self._pools[where] = native.Pool(self._thread, make) if is_addressable(where) else None
        return self._pools[where]

    def spans_devices(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if these arguments are on several devices."""
        return sharding_of_call(args, kwargs) is not None

    def may_wait(self, output: Any) -> bool:
        """True if writing to this output may wait for effects. Called when the output changes."""
        share(output)
        return may_wait(output)

    def print_options(self) -> int | None:
        """The index under which native code has NumPy's print options of this context; None if it cannot format with
        them. Called when the context changes."""
        if not FOLLOWS_NUMPY:
            return 0  # native code shows no arrays
        options = print_options(np.get_printoptions())
        return None if options is None else native.number_of_print_options(options)

    def several_devices(self) -> bool:
        """True if programs may run on several devices. Called once."""
        return several_devices()

    def most_in_flight(self) -> int:
        """The most programs with effects that may run over several devices at a time; 0: any number. Called once."""
        return 24 if launches_take_threads and jax.default_backend() == "cpu" else 0

    def compile(self, lock: Any, program: Any, args: tuple[Any, ...], kwargs: Any, gave_up: bool) -> bool:
        """Compiles a program into JAX's cache, where the call finds it. Returns False only if the program is known to
        run on one device, or refuses these arguments.

        Args:
            lock: The jitted function's lock: one of its programs is compiled at a time.
            program: The jitted function. It may not accept these arguments.
            args: The positional arguments of the call, after the token if there is one.
            kwargs: The keyword arguments of the call.
            gave_up: True if a call has raised `WouldTrace` instead of tracing the function.
        """
        if hasattr(program, "takes") and not program.takes(args, kwargs):
            return False
        compiled = program
        if hasattr(program, "trace"):
            with getattr(program, "around", contextlib.nullcontext)():
                traced = program.trace(*args, **kwargs)  # with no lock held: tracing runs the user's code
                if traced.jaxpr.is_high:  # JAX's experimental "hijax" types: only a call compiles them
                    return True
                traced = with_flat_arguments(traced)
                traced.lower()
                with lock:  # concurrent threads compile once: JAX has cached one lowering
                    compiled = traced.lower().compile()
        if gave_up:
            forget_fast_paths(program)  # else JAX's next call takes the slow path, as the one that gave up
        if not isinstance(compiled, jax.stages.Compiled):
            return True  # unknown, so take the safe way
        return len(compiled.runtime_executable().local_devices()) > 1


@functools.cache
def several_devices() -> bool:
    """True if programs may run on several devices."""
    return jax.device_count() > 1


# All streams, by thread.

MSG_NO_NUMBER = (
    "A thread called a program with effects while {count} threads had all the numbers that tokens have for threads. A "
    "number is free again when its thread has ended and its effects are visible. Call programs from fewer threads at a "
    "time."
)


class Streams:
    """The streams whose thread lives or that have open epochs, by the number of their thread. Any thread adds its own;
    the drain's leader removes.

    `launch_lock` is held while a program is launched on several devices. Otherwise two threads' programs may be queued
    in different orders on the devices and deadlock, each waiting for the other in a collective or for a free thread.

    `orders` are the values of the setting `order` that have been in force. A thread has a stream for each value, and
    nothing orders these streams among themselves.
    """

    def __init__(self) -> None:
        self.launch_lock: Any = threading.RLock()
        self.orders: set[str] = set()
        self._local = threading.local()  # `stream`: the thread's stream; the rest is described below
        self._shared = SharedStream(0, self.launch_lock, self.this_thread)
        self._use_shared = False
        self._by_thread: dict[int, Stream] = {0: self._shared}
        self.get: Callable[[int], Stream | None] = self._by_thread.get
        self._ended: set[int] = set()  # the numbers of threads that have ended
        # Drain threads are made on demand, so they have numbers of their own: then the user's threads have the same
        # numbers in all processes.
        self.numbers: Numbers = Numbers(range(1, FIRST_NESTED_THREAD))
        self.nested_numbers: Numbers = Numbers(range(PLACED_THREAD - 1, FIRST_NESTED_THREAD - 1, -1))
        self.is_named: Callable[[int], bool] = lambda thread: False  # True: a failure or a function still refers to it
        config.listen(self._configure)

    def _configure(self, settings: Config) -> None:
        self._use_shared = settings.order == "process"
        self.orders.add(settings.order)
        native.raise_attention()

    @property
    def shared(self) -> native.Stream:
        """The native part of the stream of all threads."""
        return self._shared._native

    def __getitem__(self, thread: int) -> Stream:
        return self._by_thread[thread]

    def all(self) -> list[Stream]:
        return list(self._by_thread.values())

    def current(self) -> Stream:
        """The stream of the calling thread."""
        if self._use_shared and not native.is_nested():
            return self._shared
        try:
            return self._local.stream
        except AttributeError:
            return self._make()

    def for_plain(self) -> Stream:
        """The stream of the calling thread if it has one; else that of all threads, since a program without effects,
        or a barrier, needs none of its own."""
        if self._use_shared and not native.is_nested():
            return self._shared
        return vars(self._local).get("stream", self._shared)

    def _make(self, nested: bool = False) -> Stream:
        stream = self._add(self.nested_numbers, None) if nested else self._add(self.numbers, self.launch_lock)
        self._local.stream = stream
        stream.set_here()
        self._local.owner = _Owner()
        weakref.finalize(self._local.owner, self._ended.add, stream.thread).atexit = False
        return stream

    def _add(self, numbers: Numbers, launch_lock: Any) -> Stream:
        """Adds a stream with the next free number. `setdefault` is atomic. Otherwise:

        1. A thread finds a number free.
        2. Others make streams until the numbers wrap around, and one finds the same number free.
        3. Both take the number, and the drain confuses the epochs of one with those of the other.
        """
        for _ in range(numbers.count):
            number, is_reused = numbers.take()
            if number in self._ended or (is_reused and self.is_named(number)):
                continue
            stream = Stream(number, launch_lock)
            if self._by_thread.setdefault(number, stream) is stream:
                if is_reused:
                    native.number_anew(number)
                return stream
        raise errors.EffectError(MSG_NO_NUMBER.format(count=numbers.count))

    def of_this_thread(self) -> list[Stream]:
        """The streams that may hold programs of the calling thread, the current stream last."""
        current = self.for_plain()
        if native.is_nested() or len(self.orders) == 1:
            return [current]
        return [*({self._shared, vars(self._local).get("stream", self._shared)} - {current}), current]

    def ended(self) -> list[Stream]:
        """The streams of threads that have ended, whose effects may not be visible yet. A barrier waits for these too,
        since their threads cannot. Empty in a drain thread: those effects may wait for the function that runs there."""
        if native.is_nested() or not self._ended:
            return []
        return [stream for thread in [*self._ended] if (stream := self._by_thread.get(thread)) is not None]

    def has_ended(self, thread: int, stand_in: UserThread | None) -> bool:
        """True if a thread has ended, by its number or, if threads share the stream, by its `UserThread`."""
        if stand_in is not None:
            return stand_in.has_ended
        return thread in self._ended or thread not in self._by_thread

    def this_thread(self) -> UserThread:
        """The calling `UserThread`. `threading.get_ident()` would not do: Python reuses a thread's identity."""
        try:
            return self._local.this
        except AttributeError:
            this = self._local.this = UserThread()
            self._local.owner_of_this = _Owner()
            weakref.finalize(self._local.owner_of_this, this.end).atexit = False
            return this

    def begin_trace(self, by_hand: bool = False) -> None:
        """Called before the user's function is traced, or evaluated without jit (`by_hand`). Releases `launch_lock`,
        since the function may wait for other threads. Raises `WouldTrace` where tracing is forbidden."""
        if native.take_tracing_forbidden() and not by_hand:
            raise WouldTrace
        if self.launch_lock._is_owned() and not self._shared.dispatching:
            # The lock is held only during a launch, so JAX has evicted the compiled program since it was looked up.
            self.launch_lock._release_save()  # as `threading.Condition` does

    def nest_this_thread(self) -> Stream:
        """Makes a stream for the calling thread, which is a drain thread. Programs of this stream wait for no other
        stream, since an effect of that stream may wait for them."""
        stream = self._make(nested=True)
        native.nest(stream.thread)
        return stream

    def is_first_call_under_way(self) -> bool:
        """True if a function's first call has not returned although JAX has made a fast path for it. The call's program
        may wait for a callback, and on CPUs JAX may block other calls on that path until the program is over."""
        entering = [each for stream in self.all() for each in list(stream.entering.values())]
        return any(count_fast_paths(function) != before for function, before in entering)

    @contextlib.contextmanager
    def nested_here(self) -> Iterator[Stream]:
        """Lets the calling thread act as a drain thread in a `with` block."""
        before = dict(vars(self._local))
        try:
            yield self.nest_this_thread()
        finally:
            vars(self._local).clear()
            vars(self._local).update(before)
            if (own := before.get("stream")) is not None:
                own.set_here()
            else:
                native.forget_stream_here()

    def forget_ended(self) -> None:
        """Drops the streams of ended threads that have no open epoch and no running program. The leader of the drain
        calls it.

        Native code forgets the stream first. Otherwise:

        1. The leader drops a stream from the table.
        2. A new thread takes the stream's number and opens an epoch.
        3. Native code forgets the number's count of epochs, so that the next epoch gets the number of the one in step
           2.
        """
        for thread in [*self._ended]:
            stream = self._by_thread[thread]
            is_open = stream.calls or stream.unpolled or stream.async_caller is not None
            if not is_open and stream.running_newest() is None:
                native.forget(thread)
                del self._by_thread[thread]
                self._ended.remove(thread)  # last: `has_ended` reads it


class Numbers:
    """Numbers of threads, handed out round-robin, so that a number is reused as late as possible. Any thread may take
    one."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._taken = itertools.count()
        self.count: int = len(numbers)

    def take(self) -> tuple[int, bool]:
        """Returns the next number, and True if it was taken before."""
        turn, at = divmod(next(self._taken), self.count)
        return self._numbers[at], turn > 0


class UserThread:
    """The identity of a user's thread: an object, which is never reused."""

    has_ended: bool = False

    def end(self) -> None:
        self.has_ended = True


class _Owner:
    """An object in a thread's locals. Its finalizer runs when the thread has ended."""
