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
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np

from dispatch._placed import Placed, PlacedTokens, SharedPlacedTokens, token_memory
from dispatch._sink import native
from effects._config import Config, config
from effects._sites import Site


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
        # The newest call alone; `native.open` puts it here.
        self._newest: list[tuple[Caller, TextIO | None, contextvars.Context]] = [
            (Caller(""), None, contextvars.Context())
        ]
        self._tokens: list[np.ndarray] = []  # runtime tokens of the block of epochs that is being handed out
        self._block = -1
        self.placed = PlacedTokens(thread)  # tokens on several devices
        self.turn: Any = threading.RLock()  # held while a program is opened and put where it runs

    def open(self, caller: Caller, _open: Any = native.open) -> int:
        """Gives a program its place. Returns the number of its epoch."""
        return _open(self.thread, caller, self._newest, self.calls, self.dispatching)

    def token(self, number: int) -> np.ndarray:
        """The runtime token of an epoch."""
        if number >> _BLOCK_BITS != self._block:
            self._fill(number >> _BLOCK_BITS)
        return self._tokens[number & _BLOCK_MASK]

    def keep(
        self,
        number: int,
        output_tokens: Mapping[Issued, Any],
        caller: Caller,
        placed: Placed | None,
        _has_closed: Any = native.has_closed,
    ) -> bool:
        """Keeps what a program returned, unless it has published its end by now: then nothing can fail any more, but
        for custom calls. Returns whether it may still be waiting for a callback, or for those."""
        thread = self.thread
        unclosed = self._unclosed
        while unclosed and (_has_closed(thread, unclosed[0]) or unclosed[0] not in self.running):
            self.running.pop(unclosed.popleft(), None)  # here, where its memory is taken next
        closed = _has_closed(thread, number)
        for issued, output_token in output_tokens.items():  # one, if any
            caller.issued = issued
            if issued.calls:
                self.newest_calling = number
            if placed is not None:
                if closed and not issued.custom_calls:
                    placed.free.append(placed)
                else:
                    placed.free_after(output_token)
            if closed:
                return issued.custom_calls
            self.running[number] = Running(issued.effects, output_token)
            unclosed.append(number)
            return issued.awaits or issued.custom_calls
        self.fail(number)  # a program without effects closes nothing, and reads no token
        if placed is not None:
            placed.free.append(placed)
        return False

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

    def _fill(self, block: int) -> None:
        """Makes the tokens of the next epochs. A program reads its token where it lies, so none is written twice."""
        first = block << _BLOCK_BITS
        self._tokens = list(token_memory(self.thread, range(first, first + _BLOCK)))
        self._block = block


_BLOCK_BITS = 8
_BLOCK = 1 << _BLOCK_BITS
_BLOCK_MASK = _BLOCK - 1


class _SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    def __init__(self, thread: int):
        self._own = threading.local()
        super().__init__(thread)
        self.placed = SharedPlacedTokens(thread)
        self._lock = threading.Lock()
        self._turn = threading.RLock()

    @property
    def turn(self) -> Any:  # type: ignore[override]
        """Several devices run programs in the order in which they get them, and one that waits for a callback holds up
        those behind it. So they must get them in the order of the epochs, since the callback waits for its turn."""
        return self._turn if several_devices() else _NOBODYS_TURN

    @turn.setter
    def turn(self, value: Any) -> None:
        self._turn = value

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

    def token(self, number: int) -> np.ndarray:
        with self._lock:
            return super().token(number)

    def keep(self, number: int, output_tokens: Mapping[Issued, Any], caller: Caller, placed: Placed | None, /) -> bool:
        with self._lock:
            return super().keep(number, output_tokens, caller, placed)


_NOBODYS_TURN = contextlib.nullcontext()

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
