"""A stream: a thread's sequence of epochs, one for every program that it dispatched.

The runtime token that a program takes holds the stream's and the epoch's number; it comes from the host, so no program
waits for another to get it.
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

# Runtime tokens: the host's memory, and arrays on devices.
#
# A stream's native part keeps the latter for program after program; see `Pool` in
# `dispatch/native/python/placed_tokens.h`.


def _place(thread: int, placing: Placing, cell: int, number: int) -> Any:
    """A token on devices: a cell's token, or an epoch's if `cell` is 0."""
    token = token_memory(PLACED_THREAD, cell, 1) if cell else token_memory(thread, number, 1)
    return placing.place(token[0])


_PLACES = 32
"""The number of shardings and devices for which a thread keeps tokens."""


def token_memory(thread: int, first: int, count: int) -> np.ndarray:
    """Runtime tokens of so many epochs, each where XLA takes it as it is: aligned to 64 bytes."""
    memory = np.zeros((count + 1) * 64, np.uint8)
    start = -memory.ctypes.data % 64
    tokens = memory[start : start + count * 64].view(np.uint32).reshape(-1, 16)[:, :TOKEN_LENGTH]
    tokens[:, STREAM] = stream_of(thread)
    tokens[:, EPOCH] = np.arange(first, first + count)
    return tokens


class WouldTrace(Exception):
    """Raised by a call instead of tracing, where the native stream forbids it: `dispatch/native/python/launch.h`."""


_NO_LOCK = contextlib.nullcontext()


class Stream:
    """One thread's epochs.

    `open`, `token`, `call` and `call_plain` are the native stream's own: every call goes through them. So is
    `set_here`, which makes the stream the calling thread's.

    `calls` is keyed by epoch number and holds the epochs that have not ended, each as (`Caller`, standard output,
    context). Who dispatches adds, drain threads remove. A number is not met again while it is a key, since numbers are
    handed out one after the other and wrap around after four billion.

    `running` is keyed by epoch number too, and holds those of `calls` whose program may still fail, as
    (`ProgramTraits`, output token); the token is ready when the program is over, and failed if it failed. Who
    dispatches adds after the call has returned; both it and drain threads remove.

    `unpolled` is keyed by epoch number: programs that call handlers of the user's, each as (its name,
    `ProgramTraits`, output token). Whether such a handler has failed has not been looked at. Who dispatches adds; who
    waits for the program, or calls the next one, removes.

    `stacks` is keyed by epoch number: from where the program was called, if native code was told to keep that. The
    native stream adds, drain threads remove.

    `eager` is keyed by epoch number: sites of effects that happened outside of programs. They are not remembered beyond
    their epoch, since a program's text may make a new one at every call.

    `settled` is keyed by epoch number: for an epoch that has come to its end and waits for others, or for functions
    that run, the order domains that still hold records issued so far. Drain threads write.

    `entering` is keyed by epoch number: the functions of calls by Python code that have not returned, each with how
    many fast paths JAX had for it when the call began. The calling thread writes it.

    `dispatching` holds the numbers of the epochs whose calls have not returned, the outermost first: those of the
    calling thread, which writes it.

    `held_for` is set for the stream of an asynchronous callback's function until its done: the number of the thread
    whose program has started it. Nothing of the stream becomes visible before.
    """

    is_shared: bool = False
    """True if several threads share it."""

    open: Callable[[native.Caller, list[int]], int]
    token: Callable[[int], np.ndarray]
    call: Callable[..., tuple[Any, Any]]
    call_plain: Callable[[native.Caller, Any, tuple[Any, ...], dict[str, Any]], Any]
    set_here: Callable[[], None]

    def __init__(self, thread: int, launching: Any):
        """`launching`: the lock under which programs are put on several devices; None if this stream does without."""
        self.thread = thread
        self._native = native.Stream(thread, StreamHost(thread), Array, launching, WouldTrace)
        self.open, self.token, self.call = self._native.open, self._native.token, self._native.call
        self.call_plain, self.set_here = self._native.call_plain, self._native.set_here
        self.calls: dict[int, Any] = self._native.calls
        self.running: dict[int, tuple[ProgramTraits, Any]] = self._native.running
        self.unpolled: dict[int, tuple[str, ProgramTraits, Any]] = self._native.unpolled
        self.stacks: dict[int, Any] = self._native.stacks
        self.eager: dict[int, Site] = {}
        self.settled: dict[int, set[int]] = {}
        self.entering: dict[int, tuple[Any, int]] = {}
        self.is_nested: bool = launching is None
        self.dispatching: list[int] = self._native.dispatching
        self.held_for: int | None = None
        self._ended = -1  # the number of the newest program that was seen to be over

    def hold(self, caller: int) -> None:
        self.held_for = caller
        native.hold(self.thread)

    def let_go(self) -> None:
        native.let_go(self.thread)
        self.held_for = None  # last: then the stream may be forgotten

    @property
    def newest_calling(self) -> int:
        """The number of the newest epoch whose program calls back; -1 if there was none."""
        return self._native.newest_calling

    def note_ended(self, number: int) -> None:
        """Says in a run file that a program is over, or never runs."""
        native.note(Kind.ENDED, (stream_of(self.thread), number, 0, 0))

    def running_newest(self) -> tuple[int, native.Caller, Any] | None:
        """The newest program with effects, if it is not over while all of its effects may be visible: its number,
        `Caller` and output token, which is None if its call has not returned. Says it in a run file, once, if it is
        over."""
        call = self._native.newest_call
        if call is not None and call[0] not in self.calls and call[0] in self.unreturned():
            return *call, None
        if (newest := self._native.newest_program) is None or newest[0] == self._ended:
            return None
        number, _, output_token = newest
        if output_token.is_deleted():
            return None  # it cannot be known
        if not output_token.is_ready():
            return newest
        self._ended = number
        self.note_ended(number)
        return None

    def dispatch_lock(self, calls_handlers: bool) -> Any:
        """The lock that a thread holds from where its program gets a number until the program is called.

        `calls_handlers`: True if the program calls handlers of the user's in an order."""
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
        """Takes a program out of `unpolled`, so that only the caller looks whether a handler of it has failed. Returns
        the entry; None if another thread has taken it."""
        return self.unpolled.pop(number, None)

    def drop(self, first: int, count: int) -> None:
        """Drops epochs that have ended. A drain thread calls it."""
        for number in range(first, first + count):
            number &= 0xFFFFFFFF
            self.calls.pop(number, None)  # a call that was interrupted may not have got here
            if self.running:
                self.running.pop(number, None)
            if self.eager:
                self.eager.pop(number, None)
            if self.stacks:
                self.stacks.pop(number, None)
            if self.settled:
                self.settled.pop(number, None)


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

    def __init__(self, thread: int, launching: Any, this_thread: Callable[[], object]):
        """`this_thread()`: the `UserThread` that calls."""
        self._dispatching: dict[int, list[int]] = {}  # by the thread's identity
        self._threads: dict[int, object] = {}  # by epoch number, those that have not ended: the `UserThread`
        self._this_thread = this_thread
        self._launching = launching
        super().__init__(thread, launching)
        self.open: Callable[[native.Caller, list[int]], int] = self._open

    def _open(self, caller: native.Caller, dispatching: list[int]) -> int:
        number = self._native.open(caller, dispatching)
        self._threads[number] = self._this_thread()
        return number

    def drop(self, first: int, count: int) -> None:
        super().drop(first, count)
        for number in range(first, first + count):
            if (number & 0xFFFFFFFF) not in self.unpolled:  # else a failure may still have to know it
                self._threads.pop(number & 0xFFFFFFFF, None)

    def thread_of(self, number: int) -> object:
        return self._threads.get(number)

    def dispatch_lock(self, calls_handlers: bool) -> Any:
        """Several devices run programs in the order in which they get them, and one that waits for a callback blocks
        those behind it. The callback waits for the epochs ahead of its own, so devices must get them in that order.
        The same holds for handlers on any number of devices: they run in the order in which devices get them."""
        return self._launching if calls_handlers or several_devices() else _NO_LOCK

    @property
    def dispatching(self) -> list[int]:  # type: ignore[override]
        return self._dispatching.setdefault(threading.get_ident(), [])

    @dispatching.setter
    def dispatching(self, value: list[int]) -> None:
        self._dispatching[threading.get_ident()] = value

    def unreturned(self) -> list[int]:
        return [number for numbers in list(self._dispatching.values()) for number in list(numbers)]


class StreamHost:
    """The functions that a native stream calls in Python. This must not refer to the stream, which would then never be
    freed: Python's collector does not see the references of a native object."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, native.Pool | None] = {}  # of tokens on devices, by sharding, or device

    def make_tokens(self, first: int, count: int) -> list[np.ndarray]:
        """The runtime tokens of so many epochs, on the host."""
        return list(token_memory(self._thread, first, count))

    def one_device(self) -> bool:
        """True if there is one device in all, of whatever platform. Asked once."""
        return only_device() is not None

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool | None]:
        """The sharding of these arguments, if they lie on several devices, and the tokens on the devices that they
        name; None if they name none."""
        sharding, device = sharding_of_call(args, kwargs), None
        if sharding is None:
            device = committed_device_of_call(args, kwargs)
        return sharding, self._pool(device if sharding is None else sharding)

    def find_pool_on(self, sharding: Any) -> native.Pool | None:
        """The tokens on the one device of a sharding. None if it has several: tokens there would be committed, and
        decide where a program runs."""
        return self._pool(next(iter(sharding.device_set))) if sharding.num_devices == 1 else None

    def find_first_pool(self) -> native.Pool | None:
        """The tokens on the device of programs that name none. None with several processes: of a program on another
        one's device alone, JAX's fast path takes no array that lies here."""
        return self._pool(default_device()) if jax.process_count() == 1 else None

    def find_pool_of_one(self) -> native.Pool | None:
        """The tokens on the only device that there is. Asked once."""
        return self._pool(only_device())

    def _pool(self, where: Any) -> native.Pool | None:
        if where is None:
            return None
        if where not in self._pools:
            if len(self._pools) == _PLACES:
                self._pools.clear()
            make = functools.partial(_place, self._thread, Placing(where))
            # Where no device is this process's, none reads the token.
            self._pools[where] = native.Pool(self._thread, make) if is_addressable(where) else None
        return self._pools[where]

    def spans_devices(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if these arguments are on several devices."""
        return sharding_of_call(args, kwargs) is not None

    def may_wait(self, output: Any) -> bool:
        """True if writing to this output may wait for effects. Asked whenever it is another output than before."""
        share(output)
        return may_wait(output)

    def print_options(self) -> int | None:
        """The number of NumPy's print options in this context; None where native code does not follow them. Asked
        whenever the context is another than before."""
        if not FOLLOWS_NUMPY:
            return 0  # native code shows no arrays
        options = print_options(np.get_printoptions())
        return None if options is None else native.number_of_print_options(options)

    def several_devices(self) -> bool:
        """True if programs may run on several devices. Asked once."""
        return several_devices()

    def most_in_flight(self) -> int:
        """The most programs with effects that may run over several devices at a time; 0: any number. Asked once."""
        return 24 if launches_take_threads and jax.default_backend() == "cpu" else 0

    def compile(self, lock: Any, program: Any, args: tuple[Any, ...], kwargs: Any, gave_up: bool) -> bool:
        """Compiles a program, which JAX keeps for the call. Returns whether it is for several devices.

        Args:
            lock: The caller's: one of its programs is compiled at a time.
            program: The jitted function. It may be one that does not take these arguments.
            args: The arguments of the call, the token ahead if there is one; and `kwargs`.
            gave_up: True if a call has given up, instead of tracing the function.
        """
        if hasattr(program, "takes") and not program.takes(args, kwargs):
            return False
        compiled = program
        if hasattr(program, "trace"):
            with getattr(program, "around", contextlib.nullcontext)():
                traced = program.trace(*args, **kwargs)  # for which no other thread waits
                if traced.jaxpr.is_high:  # it has values of JAX's experimental "hijax" types: only calls compile
                    return True
                traced = with_flat_arguments(traced)
                traced.lower()
                with lock:  # of several threads that were there at one time, one compiles: JAX has kept one lowering
                    compiled = traced.lower().compile()
        if gave_up:
            forget_fast_paths(program)  # the next call would take none where one has failed
        if not isinstance(compiled, jax.stages.Compiled):
            return True  # for all we know
        return len(compiled.runtime_executable().local_devices()) > 1


@functools.cache
def several_devices() -> bool:
    """True if programs may run on several devices."""
    return jax.device_count() > 1


# All streams: which thread has which, and which are forgotten.

MSG_NO_NUMBER = (
    "A thread called a program with effects while {count} threads had all the numbers that tokens have for threads. A "
    "number is free again when its thread has ended and its effects are visible. Call programs from fewer threads at a "
    "time."
)


class Streams:
    """The streams whose thread lives or that have open epochs, by the number of their thread. Any thread adds its own;
    the drain's leader removes.

    `launching` is held while a program is put on several devices. Else the devices might get two threads' programs in
    different orders, and each program wait for the other: for its part in a collective, or for room.

    `orders` are the settings of `order` that have been in force. A thread has a stream for each, and nothing orders
    these streams.
    """

    def __init__(self) -> None:
        self.launching: Any = threading.RLock()
        self.orders: set[str] = set()
        self._local = threading.local()  # `stream`: the thread's own; the others: see below
        self._shared = SharedStream(0, self.launching, self.this_thread)
        self._use_shared = False
        self._by_thread: dict[int, Stream] = {0: self._shared}
        self.get: Callable[[int], Stream | None] = self._by_thread.get
        self._ended: set[int] = set()  # numbers of threads that are gone
        # The drain's threads are made as they are needed. The user's are counted by themselves, as in all processes.
        self.numbers: Numbers = Numbers(range(1, FIRST_NESTED_THREAD))
        self.nested_numbers: Numbers = Numbers(range(PLACED_THREAD - 1, FIRST_NESTED_THREAD - 1, -1))
        self.is_named: Callable[[int], bool] = lambda thread: False  # whether a number still means a forgotten stream
        config.listen(self._configure)

    def _configure(self, settings: Config) -> None:
        self._use_shared = settings.order == "process"
        self.orders.add(settings.order)
        native.raise_attention()

    @property
    def shared(self) -> native.Stream:
        """The native part of the stream of all threads."""
        return self._shared._native

    def __len__(self) -> int:
        return len(self._by_thread)

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
        stream = self._add(self.nested_numbers, None) if nested else self._add(self.numbers, self.launching)
        self._local.stream = stream
        stream.set_here()
        self._local.owner = _Owner()
        weakref.finalize(self._local.owner, self._ended.add, stream.thread).atexit = False
        return stream

    def _add(self, numbers: Numbers, launching: Any) -> Stream:
        """Adds a stream with the next number that no other has. `setdefault` is one step. Otherwise:

        1. A thread finds that no stream has a number.
        2. Others make streams until the numbers begin anew, and one finds the same.
        3. Both take the number, and the drain ends the epochs of one as those of the other.
        """
        for _ in range(numbers.count):
            number, again = numbers.take()
            if number in self._ended or (again and self.is_named(number)):
                continue
            stream = Stream(number, launching)
            if self._by_thread.setdefault(number, stream) is stream:
                if again:
                    native.number_anew(number)
                return stream
        raise errors.EffectError(MSG_NO_NUMBER.format(count=numbers.count))

    def own(self) -> list[Stream]:
        """The streams that the calling thread's programs may be in, the current one last."""
        current = self.for_plain()
        if native.is_nested() or len(self.orders) == 1:
            return [current]
        return [*({self._shared, vars(self._local).get("stream", self._shared)} - {current}), current]

    def ended(self) -> list[Stream]:
        """The streams of threads that have ended and have effects that may not be visible yet. A thread that waits for
        its own also waits for these, since no other thread will. In a drain thread there are none: they may wait for
        the function that runs there."""
        if native.is_nested() or not self._ended:
            return []
        return [stream for thread in [*self._ended] if (stream := self._by_thread.get(thread)) is not None]

    def has_ended(self, thread: int, stand_in: UserThread | None) -> bool:
        """True if a thread has ended, by its number or, if threads share the stream, by its `UserThread`."""
        if stand_in is not None:
            return stand_in.has_ended
        return thread in self._ended or thread not in self._by_thread

    def this_thread(self) -> UserThread:
        """The `UserThread` that calls. A thread's identity may be another's later."""
        try:
            return self._local.this
        except AttributeError:
            this = self._local.this = UserThread()
            self._local.owner_of_this = _Owner()
            weakref.finalize(self._local.owner_of_this, this.end).atexit = False
            return this

    def begin_trace(self, by_hand: bool = False) -> None:
        """Called before the user's function is traced, or run by hand. Gives `launching` back: the function may wait
        for other threads. Raises `WouldTrace` where tracing is forbidden."""
        if native.take_tracing_forbidden() and not by_hand:
            raise WouldTrace
        if self.launching._is_owned() and not self._shared.dispatching:  # JAX has not kept what was compiled
            self.launching._release_save()  # as `threading.Condition` does

    def nest_this_thread(self) -> Stream:
        """Makes a stream for the calling thread, which is one of the drain's. Its programs wait for no others, since an
        effect may wait for them."""
        stream = self._make(nested=True)
        native.nest(stream.thread)
        return stream

    def is_first_call_under_way(self) -> bool:
        """True if a first call is under way, for which JAX has made a fast path since. The call's program may wait for
        a callback, and on CPUs JAX may make other calls on the same path wait until that program is over."""
        entering = [each for stream in self.all() for each in list(stream.entering.values())]
        return any(count_fast_paths(function) != before for function, before in entering)

    @contextlib.contextmanager
    def nested_here(self) -> Iterator[Stream]:
        """The calling thread does the drain's work for a while."""
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
        """Drops the streams of threads that are gone and have nothing open, nor a program that still runs. The leader
        of the drain calls it.

        Native code is first. Otherwise:

        1. The leader drops a stream from the table.
        2. A thread takes its number, and opens an epoch.
        3. Native code forgets how far the number's epochs have been counted, and the next one has the same number.
        """
        for thread in [*self._ended]:
            stream = self._by_thread[thread]
            is_open = stream.calls or stream.unpolled or stream.held_for is not None
            if not is_open and stream.running_newest() is None:
                native.forget(thread)
                del self._by_thread[thread]
                self._ended.remove(thread)  # last: until then it says that the thread has ended


class Numbers:
    """Numbers of threads, one after the other, and after the last one the first again: a number means another thread as
    late as possible. Any thread takes them."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._taken = itertools.count()
        self.count: int = len(numbers)

    def take(self) -> tuple[int, bool]:
        """The next one, and whether it was taken before."""
        turn, at = divmod(next(self._taken), self.count)
        return self._numbers[at], turn > 0


class UserThread:
    """A thread of the user's, by an object that no other thread has later."""

    has_ended: bool = False

    def end(self) -> None:
        self.has_ended = True


class _Owner:
    """Lives as long as its thread's locals do."""
