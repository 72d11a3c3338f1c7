"""Streams: which dispatches a thread has made, and what was in force when it made them.

A stream is a thread's sequence of epochs, one for every program that it dispatched. The runtime token that a program
takes holds the stream's and the epoch's number; it comes from the host, so no program waits for another to get it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from dispatch._placed import PlacedTokens, token_memory
from dispatch._sink import native
from effects._config import Config, config
from effects._jax import Array, forget_fast_paths, launches_take_threads
from effects._sites import Site
from effects._wire import UNTRACKED_THREAD

launching: Any = threading.RLock()
"""Held while a program is put on several devices. Else they might get it and another thread's in different orders, and
each wait for the other: for its part in a collective, or for room."""


class WouldTrace(Exception):
    """What a call raises instead of tracing, where `TracingForbidden` says so; see dispatch/native/python/launch.h."""


_NOBODYS_TURN = contextlib.nullcontext()


class Stream(native.Stream):
    """One thread's epochs. What every call goes through is native: `open`, `token` and `call`.

    `calls` is keyed by epoch number and holds the epochs that have not ended, each as (`Caller`, standard output,
    context). Who dispatches adds, drain threads remove. A number is not met again while it is a key, since numbers are
    handed out in turn and wrap around after four billion.

    `running` is keyed by epoch number too, and holds those of `calls` whose program may still fail, as
    (`ProgramTraits`, output token); the token is ready when the program is over, and failed if it failed. Who
    dispatches adds after the call has returned; both it and drain threads remove.

    `eager` is keyed by epoch number: sites of effects that happened outside of programs. They are not remembered beyond
    their epoch, since a program's text may make a new one at every call.

    `dispatching` holds the numbers of the epochs whose calls have not returned, the outermost first: those of the
    calling thread, which writes it.
    """

    turn: Any = _NOBODYS_TURN
    """Held from where a program gets its place until it is called."""

    def __init__(self, thread: int, nested: bool = False):
        super().__init__(thread, Array, None if nested else launching, WouldTrace)
        self.eager: dict[int, Site] = {}
        self.dispatching: list[int] = []
        self._placed = PlacedTokens(thread)

    def unreturned(self) -> list[int]:
        """The numbers of the epochs whose calls have not returned, of all threads."""
        return self.dispatching

    def thread_of(self, number: int) -> object:
        """What stands for the thread that opened an epoch, where the stream is not one thread's."""
        return None

    def fail(self, number: int) -> None:
        """The program failed or never ran: nothing more will come from it."""
        native.fail(self.thread, number)

    def drop(self, first: int, count: int) -> None:
        """These epochs have ended. A drain thread calls it."""
        for number in range(first, first + count):
            number &= 0xFFFFFFFF
            self.calls.pop(number, None)  # a call that was interrupted may not have got here
            if self.running:
                self.running.pop(number, None)
            if self.eager:
                self.eager.pop(number, None)

    # What the native part asks for.

    def _make_tokens(self, first: int, count: int) -> list[np.ndarray]:
        return list(token_memory(self.thread, first, count))

    def _find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._placed.find_pool(args, kwargs)

    def _several_devices(self) -> bool:
        return several_devices()

    def _most_in_flight(self) -> int:
        return _most_in_flight()

    def _compile(self, turn: Any, threaded: Any, token: Any, args: Any, kwargs: Any, gave_up: bool) -> bool:
        """Compiles the program, which JAX keeps for the call. Returns whether it is for several devices.

        `gave_up`: a call has, instead of tracing the function.
        """
        compiled = threaded
        if hasattr(threaded, "lower"):
            threaded.lower(token, *args, **kwargs)  # traces, for which nobody waits
            with turn:  # of several threads that were there at one time, one compiles: JAX has kept one lowering
                compiled = threaded.lower(token, *args, **kwargs).compile()
        if gave_up:
            forget_fast_paths(threaded)  # the next call would take none where one has failed
        if not isinstance(compiled, jax.stages.Compiled):
            return True  # for all we know
        return len(compiled.runtime_executable().local_devices()) > 1


class _SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    def __init__(self, thread: int):
        self._dispatching: dict[int, list[int]] = {}  # by the thread's identity
        self._threads: dict[int, object] = {}  # by epoch number, those that have not ended: what stands for the thread
        super().__init__(thread)

    def open(self, caller: Any, dispatching: list[int]) -> int:
        number = super().open(caller, dispatching)
        self._threads[number] = this_thread()
        return number

    def drop(self, first: int, count: int) -> None:
        super().drop(first, count)
        for number in range(first, first + count):
            self._threads.pop(number & 0xFFFFFFFF, None)

    def thread_of(self, number: int) -> object:
        return self._threads.get(number)

    @property
    def turn(self) -> Any:  # type: ignore[override]
        """Several devices run programs in the order in which they get them, and one that waits for a callback holds up
        those behind it. So they must get them in the order of the epochs, since the callback waits for its turn."""
        return launching if several_devices() else _NOBODYS_TURN

    @property
    def dispatching(self) -> list[int]:  # type: ignore[override]
        return self._dispatching.setdefault(threading.get_ident(), [])

    @dispatching.setter
    def dispatching(self, value: list[int]) -> None:
        self._dispatching[threading.get_ident()] = value

    def unreturned(self) -> list[int]:
        return [number for numbers in list(self._dispatching.values()) for number in list(numbers)]


streams: dict[int, Stream] = {}
"""By thread number: streams whose thread lives or that have open epochs. Any thread adds its own; the drain removes."""

_numbers = itertools.count(1)
_nested_numbers = itertools.count(UNTRACKED_THREAD - 1, -1)
"""The drain's threads are made as they are needed. The user's are counted by themselves, alike in all processes."""
_shared = streams[0] = _SharedStream(0)
_use_shared = False
_local = threading.local()
orders: set[str] = set()
"""Settings of `order` that have been in force. A thread has a stream for each, and these know nothing of each other."""


def _configure(settings: Config) -> None:
    global _use_shared
    _use_shared = settings.order == "process"
    orders.add(settings.order)


config.listen(_configure)


class _Owner:
    """Lives as long as its thread's locals do."""


def this_thread() -> object:
    """What stands for the calling thread. Its identity may be another's later."""
    try:
        return _local.this
    except AttributeError:
        this = _local.this = object()
        return this


def current_stream() -> Stream:
    """The stream of the calling thread."""
    if _use_shared and not is_nested():
        return _shared
    try:
        return _local.stream
    except AttributeError:
        nested = is_nested()
        stream = _local.stream = Stream(next(_nested_numbers if nested else _numbers), nested)
        streams[stream.thread] = stream
        _local.owner = _Owner()
        weakref.finalize(_local.owner, _ended.append, stream.thread).atexit = False
        return stream


def own_streams() -> list[Stream]:
    """All that the calling thread's programs may be in, the current one last."""
    current = current_stream()
    if is_nested() or len(orders) == 1:
        return [current]
    return [*({_shared, vars(_local).get("stream", _shared)} - {current}), current]


def begin_trace(by_hand: bool = False) -> None:
    """The user's function is about to be traced, or run by hand. Others do not wait for that: it may wait for them."""
    if native.take_tracing_forbidden() and not by_hand:
        raise WouldTrace
    if launching._is_owned() and not _shared.dispatching:  # JAX has not kept what was compiled
        launching._release_save()  # as `threading.Condition` does


def is_nested() -> bool:
    """Whether the calling thread is one of the drain's: what it dispatches is part of an effect."""
    return getattr(_local, "nested", False)


def nest_this_thread() -> Stream:
    """The calling thread is one of the drain's. Its programs wait for no others, since an effect may wait for them."""
    _local.nested = True
    stream = current_stream()
    native.nest(stream.thread)
    return stream


@functools.cache
def several_devices() -> bool:
    """Whether programs may run on several devices."""
    return jax.device_count() > 1


@functools.cache
def _most_in_flight() -> int:
    """How many programs with effects may run over several devices at a time; 0: any number."""
    return 24 if launches_take_threads and jax.default_backend() == "cpu" else 0


@contextlib.contextmanager
def nested_here() -> Iterator[Stream]:
    """The calling thread does the drain's work for a while."""
    before = dict(vars(_local))
    vars(_local).pop("stream", None)
    try:
        yield nest_this_thread()
    finally:
        vars(_local).clear()
        vars(_local).update(before)


_ended: list[int] = []  # numbers of threads that are gone; the drain forgets them when their epochs have ended


def forget_ended() -> None:
    """Drops the streams of threads that are gone and have nothing open. The leader of the drain calls it."""
    for thread in _ended[:]:
        if not streams[thread].calls:
            _ended.remove(thread)
            del streams[thread]
            native.forget(thread)
