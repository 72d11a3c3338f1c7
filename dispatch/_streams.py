"""Streams: which dispatches a thread has made, and what was in force when it made them.

A stream is a thread's sequence of epochs, one for every program that it dispatched. The runtime token that a program
takes holds the stream's and the epoch's number; it comes from the host, so no program waits for another to get it.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np

from dispatch._sink import native
from effects._config import Config, config
from effects._jax_compat import Placing
from effects._sites import Site
from lowering._record import DOMAIN_BITS, EPOCH, STREAM, TOKEN_LENGTH


class Issued(NamedTuple):
    """What is known of a program's effects. Every call returns it, beside the output token."""

    effects: tuple[str, ...]  # their names
    calls: bool  # whether it calls back
    awaits: bool  # whether it waits for what callbacks return
    custom_calls: bool = False  # whether it calls handlers of the user's


class Caller:
    """A jitted function, as far as its calls are concerned."""

    __slots__ = ("issued", "name")

    def __init__(self, name: str):
        self.name = name
        self.issued: Issued | None = None  # by the newest of its programs that has returned


class Running(NamedTuple):
    """What a program returned that has not published its end yet."""

    effects: tuple[str, ...]
    output_token: Any  # ready when the program is over; failed if it failed


class Stream:
    """One thread's epochs.

    `calls` is keyed by epoch number and holds the epochs that have not ended. The owning thread adds (it alone
    dispatches), drain threads remove. A number is not met again while it is a key, since numbers are handed out in
    turn and wrap around after four billion.

    `running` is keyed by epoch number too, and holds those of `calls` whose program may still fail. The owning thread
    adds after its call has returned; drain threads remove.

    `eager` is keyed by epoch number: sites of effects that happened outside of programs. They are not remembered beyond
    their epoch, since a program's text may make a new one at every call.

    `dispatching` holds the numbers of the epochs whose calls have not returned, the outermost first. The owning thread
    writes it. A number gets in before the native side hears of it, so that an interrupt leaves nothing open.
    """

    def __init__(self, thread: int):
        self.thread = thread
        self.calls: dict[int, tuple[Caller, TextIO | None, contextvars.Context]] = {}
        self.running: dict[int, Running] = {}
        self.eager: dict[int, Site] = {}
        self.dispatching: list[int] = []
        self._unclosed: collections.deque[int] = collections.deque()  # those of `running`, in turn, as the owner knows
        self.newest_calling = -1  # the number of the newest epoch whose program calls back
        self._next = 0  # the number that the next epoch will have
        # The newest call. Those that follow share it while nothing has changed, and their text is written in one go.
        self._call: tuple[Caller, TextIO | None, contextvars.Context] = (Caller(""), None, contextvars.Context())
        self._tokens: list[np.ndarray] = []  # runtime tokens of the block of epochs that is being handed out
        self._block = -1
        self._placed: dict[Any, _Placed] = {}  # by sharding: tokens on several devices

    def open(
        self,
        caller: Caller,
        # Defaults, so that a dispatch does not look them up.
        _sys: Any = sys,
        _open: Any = native.open,
        _copy_context: Any = contextvars.copy_context,
    ) -> tuple[int, np.ndarray]:
        """Gives a program its place. Returns the number of its epoch and its runtime token."""
        stdout, context = _sys.stdout, _copy_context()
        call = self._call
        if call[1] is not stdout or call[0] is not caller or not _same(call[2], context):
            call = self._call = (caller, stdout, context)
        self.dispatching.append(self._next)
        number = self.dispatching[-1] = _open(self.thread, id(call))
        self._next = (number + 1) & 0xFFFFFFFF
        if number >> _BLOCK_BITS != self._block:
            self._fill(number >> _BLOCK_BITS)
        self.calls[number] = call
        return number, self._tokens[number & _BLOCK_MASK]

    def place(self, number: int, token: np.ndarray, sharding: Any) -> Any:
        """The runtime token of the newest epoch, on all devices of a sharding.

        XLA waits for what has just been put on a device. Where one program follows the other, tokens are put there
        ahead.
        """
        placed = self._placed.get(sharding)
        if placed is None:
            if len(self._placed) == _SHARDINGS:
                self._placed.clear()
            placed = self._placed[sharding] = _Placed(Placing(sharding))
        start = number & _BLOCK_MASK
        return placed.take(number, token, self._tokens[start + 1 : start + self._ahead])

    _ahead = 64  # so many tokens at a time

    def keep(
        self,
        number: int,
        output_tokens: Mapping[Issued, Any],
        caller: Caller,
        _has_closed: Any = native.has_closed,
    ) -> bool:
        """Keeps what a program returned, unless it has published its end by now: then nothing can fail any more, but
        for custom calls. Returns whether it may still be waiting for a callback, or for those."""
        custom_calls = False
        for issued in output_tokens:
            caller.issued = issued
            custom_calls = issued.custom_calls
            if issued.calls:
                self.newest_calling = number
        unclosed = self._unclosed
        while unclosed and (_has_closed(self.thread, unclosed[0]) or unclosed[0] not in self.running):
            self.running.pop(unclosed.popleft(), None)  # here, where its memory is taken next
        if _has_closed(self.thread, number):
            return custom_calls
        awaits = False
        for issued, output_token in output_tokens.items():
            self.running[number] = Running(issued.effects, output_token)
            self._unclosed.append(number)
            awaits = issued.awaits or custom_calls
        if not output_tokens:
            self.fail(number)  # a program without effects closes nothing
        return awaits

    def fail(self, number: int) -> None:
        """The program failed or never ran: nothing more will come from it."""
        native.fail(self.thread, number)

    def abandon(self, depth: int) -> None:
        """A call was left by an exception: fails what it opened, down to this many epochs."""
        while len(self.dispatching) > depth:
            self.fail(self.dispatching.pop())

    def drop(self, first: int, count: int) -> None:
        """These epochs have ended. A drain thread calls it."""
        for number in range(first, first + count):
            number &= 0xFFFFFFFF
            self.calls.pop(number, None)  # a call that was interrupted may not have got here
            if self.running:
                self.running.pop(number, None)
            if self.eager:
                self.eager.pop(number, None)

    def _fill(self, block: int) -> None:
        """Makes the tokens of the next epochs. A program reads its token where it lies, so none is written twice."""
        # XLA takes memory as it is if it is aligned to 64 bytes, and copies it otherwise.
        memory = np.zeros((_BLOCK + 1) * 64, np.uint8)
        start = -memory.ctypes.data % 64
        slots = memory[start : start + _BLOCK * 64].view(np.uint32).reshape(_BLOCK, 16)
        slots[:, STREAM] = self.thread << DOMAIN_BITS
        slots[:, EPOCH] = np.arange(block << _BLOCK_BITS, (block + 1) << _BLOCK_BITS)
        self._tokens = list(slots[:, :TOKEN_LENGTH])
        self._block = block


class _Placed:
    """A stream's tokens on several devices."""

    def __init__(self, placing: Placing):
        self._placing = placing
        self._first = 0  # the number of the epoch of the first of `_tokens`
        self._tokens: list[Any] = []
        self._newest = -1
        self._in_turn = 0  # how many have been taken, each soon after the other

    def take(self, number: int, token: np.ndarray, following: Sequence[np.ndarray]) -> Any:
        """That of this epoch."""
        self._in_turn = self._in_turn + 1 if number - self._newest <= 2 else 0
        self._newest = number
        at = number - self._first
        if not 0 <= at < len(self._tokens):
            at, self._first = 0, number
            together = [token, *following] if self._in_turn > 4 else [token]
            self._tokens = list(map(self._placing.place, together))
        placed, self._tokens[at] = self._tokens[at], None  # the device keeps it for as long as it needs it
        return placed


_SHARDINGS = 16
"""For how many shardings a stream keeps tokens."""


def _same(a: contextvars.Context, b: contextvars.Context) -> bool:
    """Whether two contexts hold the same values, by identity: equal ones may show differently, or not compare."""
    return len(a) == len(b) and all(b.get(variable, _same) is value for variable, value in a.items())


_BLOCK_BITS = 8
_BLOCK = 1 << _BLOCK_BITS
_BLOCK_MASK = _BLOCK - 1


class _SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    _ahead = 1  # whose numbers other threads take

    def __init__(self, thread: int):
        self._own = threading.local()
        super().__init__(thread)
        self._lock = threading.Lock()

    @property
    def dispatching(self) -> list[int]:  # type: ignore[override]
        try:
            return self._own.dispatching
        except AttributeError:
            self._own.dispatching = []
            return self._own.dispatching

    @dispatching.setter
    def dispatching(self, value: list[int]) -> None:
        self._own.dispatching = value

    def open(self, caller: Caller) -> tuple[int, np.ndarray]:  # type: ignore[override]
        with self._lock:
            return super().open(caller)

    def place(self, number: int, token: np.ndarray, sharding: Any) -> Any:
        with self._lock:
            return super().place(number, token, sharding)


streams: dict[int, Stream] = {}
"""By thread number: streams whose thread lives or that have open epochs. Any thread adds its own; the drain removes."""

_numbers = itertools.count(1)
_nested_numbers = itertools.count(native.PLAIN_THREAD - 1, -1)
"""The drain's threads are made as they are needed. The user's are counted by themselves, alike in all processes."""
_shared = streams[0] = _SharedStream(0)
_use_shared = False
_local = threading.local()


def _configure(settings: Config) -> None:
    global _use_shared
    _use_shared = settings.order == "process"


config.listen(_configure)


class _Owner:
    """Lives as long as its thread's locals do."""


def current_stream() -> Stream:
    """The stream of the calling thread."""
    if _use_shared and not is_nested():
        return _shared
    try:
        return _local.stream
    except AttributeError:
        stream = _local.stream = Stream(next(_nested_numbers if is_nested() else _numbers))
        streams[stream.thread] = stream
        _local.owner = _Owner()
        weakref.finalize(_local.owner, _ended.append, stream.thread).atexit = False
        return stream


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
