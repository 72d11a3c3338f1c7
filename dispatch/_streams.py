"""Streams: which dispatches a thread has made, and what was in force when it made them.

A stream is a thread's sequence of epochs, one for every program that it dispatched. The runtime token that a program
takes holds the stream's and the epoch's number; it comes from the host, so no program waits for another to get it.
"""

from __future__ import annotations

import contextvars
import itertools
import sys
import threading
import weakref
from typing import Any

import numpy as np

from dispatch._sink import native
from effects._config import Config, config
from lowering._record import DOMAIN_BITS, TOKEN_LENGTH


class Epoch:
    """One dispatched program, from its call until all its effects are visible."""

    __slots__ = ("context", "effects", "function", "number", "output_token", "stdout")

    def __init__(
        self,
        function: str,
        # Defaults, so that a call does not look them up: this runs at every dispatch.
        _sys: Any = sys,
        _copy_context: Any = contextvars.copy_context,
    ):
        self.function = function  # the jitted function's name, for messages
        self.stdout = _sys.stdout  # where its lines go: the caller's
        self.context = _copy_context()  # in force while its effects are replayed: the caller's
        self.number = -1
        self.output_token: Any = None  # the array that the program returned; None while the call is under way
        self.effects: tuple[str, ...] | None = None  # names; None while unknown


class Stream:
    """One thread's epochs.

    `epochs` is keyed by epoch number; its values are the epochs that have not ended. The owning thread adds (it alone
    dispatches), the drain thread removes. A number is not met again while it is a key, since numbers are handed out in
    turn and wrap around after four billion.
    """

    def __init__(self, thread: int):
        self.thread = thread
        self.epochs: dict[int, Epoch] = {}
        self._token = np.zeros(TOKEN_LENGTH, np.uint32)
        self._token[0] = thread << DOMAIN_BITS

    def open(self, epoch: Epoch) -> np.ndarray:
        """Gives a program its place. Returns its runtime token."""
        number = epoch.number = native.open(self.thread, id(epoch.stdout))
        self.epochs[number] = epoch
        token = self._token.copy()
        token[1] = number
        return token

    def fail(self, epoch: Epoch) -> None:
        """The program failed or never ran: nothing more will come from it."""
        native.fail(self.thread, epoch.number)


class _SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    def __init__(self, thread: int):
        super().__init__(thread)
        self._lock = threading.Lock()

    def open(self, epoch: Epoch) -> np.ndarray:
        with self._lock:
            return super().open(epoch)


streams: dict[int, Stream] = {}
"""By thread number: streams whose thread lives or that have open epochs. Any thread adds its own; the drain removes."""

_numbers = itertools.count(1)
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
    if _use_shared:
        return _shared
    try:
        return _local.stream
    except AttributeError:
        stream = _local.stream = Stream(next(_numbers))
        streams[stream.thread] = stream
        _local.owner = _Owner()
        weakref.finalize(_local.owner, _ended.append, stream.thread).atexit = False
        return stream


_ended: list[int] = []  # numbers of threads that are gone; the drain forgets them when their epochs have ended


def forget_ended() -> None:
    """Drops the streams of threads that are gone and have nothing open. The drain thread calls it."""
    for thread in _ended[:]:
        if not streams[thread].epochs:
            _ended.remove(thread)
            del streams[thread]
            native.forget(thread)
