"""Callbacks for which a program waits, one by one, on the shortest path to their answers.

A program that waits in each step of a loop goes as fast as this path is short. So it is one function, for a batch that
holds nothing else (`Asked`), a function that is called once with arrays, and a drain in which nothing else has to be
seen to. `Replay` has the general path, and says what this one must come to.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from effects._model.host_call import take_results
from effects._wire import Asked, Batch, CallbackRecord, Item, ItemKind
from effects.dispatch.draining.failures import Failures, ProgramKey
from effects.dispatch.draining.observers import Observers
from effects.dispatch.draining.replay import Replay, Settle
from effects.dispatch.draining.runs import Runs
from effects.dispatch.streams.table import Streams
from effects.lowering.host.native import native
from effects.lowering.host.publish import to_bytes
from effects.lowering.host.sites import KnownSites


def answer_with(reply: int, result: Any) -> None:
    """Tells a device what a callback returned, or why it did not."""
    if result is None or isinstance(result, list):
        native.answer(reply, [to_bytes(x) for x in result or ()])
    else:
        native.answer_error(reply, str(result).encode("utf-8", "replace").decode())


def as_item(asked: tuple[Any, ...]) -> Item:
    """What was asked, as an item of a batch."""
    _, _, thread, epoch, site, token, device, reply, payload = asked
    record = CallbackRecord(site, token, device, reply, False, payload)
    return Item(ItemKind.RECORDS, thread, epoch, 1, [record], None, True, False, reply)


def left_of(run: list[Any] | tuple[Any, ...]) -> list[Item]:
    """What is left of a run that is under way: of the items of a batch, or of what was asked."""
    return [Item._make(item) for item in run if item] if isinstance(run, list) else [as_item(run)]


def as_batch(asked: tuple[Any, ...]) -> Batch:
    """The batch that holds what was asked alone, for the general path."""
    run, untracked, *_ = asked
    return Batch([as_item(asked)], [], [], None, run, untracked, False)


ASKED = len(Asked._fields)
"""How long what native code gives is where it is an `Asked`. No tuple has its class, since that would take time."""


class DirectCalls:
    """What the path looks at. Drain threads use it.

    Args:
        streams: Who called what.
        failures: What has failed so far.
        observers: Who sees records.
        sites: What records are of.
        runs: The drain's, of functions that are under way.
        running: The drain's, of functions by their thread.
        start_thread: Called when no thread of the drain stands by.
        fail: Called with a program that has failed on one of its devices.
        patience: Seconds after which a batch comes though there is nothing in it.
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
        fail: Callable[[ProgramKey], None],
        patience: float,
    ) -> None:
        self._stream_of = streams.get
        self._failures = failures
        self._observers = observers
        self._site_of = sites.get
        self._runs = runs
        self._running = running
        self._start_thread = start_thread
        self._fail = fail
        self._next = patience, observers.note_output
        self.next_batch: Callable[[], tuple[Any, ...]] = functools.partial(native.next_batch, *self._next)

    def answer(self, asked: tuple[Any, ...], settle: Settle | None) -> tuple[Any, ...] | None:
        """Calls the function and answers. Returns the leader's next batch, or None if another thread leads now. If the
        call takes the general path: the batch that it is."""
        failures, observers = self._failures, self._observers
        if failures.programs or failures.unended or failures.given_up or failures.untracked_ended:
            return as_batch(asked)
        if observers.handlers or observers.captures:
            return as_batch(asked)
        run, untracked, thread, epoch, site_id, token, device, reply, payload = asked
        if (stream := self._stream_of(thread)) is None or stream.eager:
            return as_batch(asked)
        call, site = stream.calls.get(epoch), self._site_of(site_id)
        if call is None or site is None or not site.is_called_with_arrays:
            return as_batch(asked)
        if (fn := site.content.function.fn) is None:
            return as_batch(asked)
        key, me, under_way = (thread, epoch), threading.get_ident(), id(asked)
        self._runs[under_way] = run, untracked, asked
        if native.offer() == 0:
            self._start_thread()
        self._running[me] = site, key, token, reply, False, monotonic()
        result: Any
        try:
            try:
                returned = call[2].copy().run(fn, *[np.ndarray(*place[:2], payload, place[2]) for place in site.places])
            finally:
                if settle is not None:
                    settle(key)
            only = site.content.only_result
            if (
                only is not None
                and type(returned) is np.ndarray
                and returned.dtype is only.stored
                and returned.shape == only.shape
            ):
                result = [to_bytes(returned)]  # what `take_results` comes to, for what is most common
            else:
                results = take_results(site.content, site.where, returned, site.content.results or ())
                result = [to_bytes(x) for x in results]
        except BaseException as error:
            result = Replay(failures, observers, call, key, settle).end(error, site, token, device)
            self._fail(key)
        self._running.pop(me, None)
        if failures.frames:
            failures.clear_frames()
        suspended = self._runs.pop(under_way, None) is not None
        if suspended and isinstance(result, list):
            return native.conclude(run, untracked, reply, result, *self._next)
        if suspended:
            native.resume(run, untracked)
        answer_with(reply, result)
        return self.next_batch() if native.reclaim() else None
