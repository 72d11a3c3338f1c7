"""Answers of callbacks for which a program waits, and what native code's short path to them leaves to Python.

A program that waits in each step of a loop goes as fast as that path is short: `dispatch/native/python/direct_calls.h`
says what takes it. `Replay` has the general path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from effects import _jax
from effects._model.callback import take_results
from effects._model.site import Site
from effects._model.wire import CallbackRecord, Item, ItemKind
from effects.dispatch.draining.failures import Failures, ProgramKey
from effects.dispatch.draining.observers import Observers
from effects.dispatch.draining.replay import Replay, Settle
from effects.dispatch.draining.runs import Runs
from effects.dispatch.streams.stream import Stream
from effects.dispatch.streams.table import Streams
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites, to_bytes


def answer_with(reply: int, result: Any) -> None:
    """Tells a device what a callback returned, or why it did not."""
    if result is None or isinstance(result, list):
        native.answer(reply, [to_bytes(x) for x in result or ()])
    else:
        native.answer_error(reply, _shown(result))


def _shown(failure: Any) -> str:
    return str(failure).encode("utf-8", "replace").decode()


def left_of(run: list[Any] | tuple[Any, ...]) -> list[Item]:
    """What is left of a run that is under way: of the items of a batch, or of a call on the short path."""
    if isinstance(run, list):
        return [Item._make(item) for item in run if item]
    (thread, epoch), site, token, device, reply, payload = run
    record = CallbackRecord(site.id, token, device, reply, False, payload)
    return [Item(ItemKind.RECORDS, thread, epoch, 1, [record], None, True, False, reply)]


class DirectCallsHost:
    """What the short path looks at, and what it leaves to Python. Drain threads use it.

    Args:
        streams: Who called what.
        failures: What has failed so far.
        observers: Who sees records.
        sites: What records are of.
        runs: The drain's, of functions that are under way.
        running: The drain's, of functions by their thread.
        start_thread: Called when no thread of the drain stands by.
        look: Called now and then, for what comes by no batch.
        fail_program: Called with a program that has failed on one of its devices.
    """

    def __init__(
        self,
        streams: Streams,
        failures: Failures,
        observers: Observers,
        sites: KnownSites,
        runs: Runs,
        running: dict[int, Any],
        start_thread: Callable[[], object],
        look: Callable[[], None],
        fail_program: Callable[[ProgramKey], None],
    ) -> None:
        self.stream_of: Callable[[int], Stream | None] = streams.get
        self.site_of: Callable[[int], Site | None] = sites.get
        self.failures: Failures = failures
        self.clear_frames: Callable[[], None] = failures.clear_frames
        self.observers: Observers = observers
        self.note_output: Callable[[], None] = observers.note_output
        self.runs: Runs = runs
        self.running: dict[int, Any] = running
        self.start_thread: Callable[[], object] = start_thread
        self.look: Callable[[], None] = look
        self.array_types: tuple[type, ...] = (np.ndarray, np.generic, _jax.Array)
        self._fail_program = fail_program

    def take_results(self, site: Site, returned: Any) -> list[Any]:
        """What a function returned, as bytes."""
        content: Any = site.content  # a `HostCall`
        return [to_bytes(x) for x in take_results(content, returned, content.results or ())]

    def fail(
        self,
        error: BaseException,
        call: Any,
        key: ProgramKey,
        settle: Settle,
        site: Site,
        token: tuple[int, ...],
        device: int,
    ) -> str:
        """A function raised this, or returned what was not asked for: ends its program. `call`: what was in force when
        that was called. Returns what it gets to hear."""
        failure = Replay(self.failures, self.observers, call, key, settle).end(error, site, token, device)
        self._fail_program(key)
        return _shown(failure)
