"""Callbacks for which a program waits, one by one, on the shortest path to their answers.

A program that waits in each step of a loop goes as fast as this path is short. So it is one function, for a batch that
holds nothing else, a function that is called once with arrays, and a drain in which nothing else has to be seen to.
`Replay` has the general path, and says what this one must come to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from effects._model.host_call import HostCall, take_results
from effects._model.where import Where
from effects.dispatch.draining.failures import Failures, ProgramKey
from effects.dispatch.draining.observers import Observers
from effects.dispatch.draining.replay import Replay, Settle
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
    """

    def __init__(
        self,
        streams: Streams,
        failures: Failures,
        observers: Observers,
        sites: KnownSites,
        runs: dict[int, Any],
        running: dict[int, Any],
        start_thread: Callable[[], object],
        fail: Callable[[ProgramKey], None],
    ) -> None:
        self._streams = streams
        self._failures = failures
        self._observers = observers
        self._sites = sites
        self._runs = runs
        self._running = running
        self._start_thread = start_thread
        self._fail = fail

    def answer(self, items: list[Any], run: int, untracked: int, settle: Settle | None) -> bool | None:
        """Calls the function of the only item and answers. Returns whether this thread still leads, or None if the
        call takes the general path."""
        failures, observers = self._failures, self._observers
        if failures.programs or failures.unended or failures.given_up or failures.untracked_ended:
            return None
        if observers.handlers or observers.captures or len(items) != 1:
            return None
        _, thread, epoch, _, parts, _, _, failed, asked = items[0]
        if not asked or failed or len(parts) != 1 or (stream := self._streams.get(thread)) is None or stream.eager:
            return None
        site_id, token, device, reply, several, payload = parts[0]
        call, site = stream.calls.get(epoch), self._sites.get(site_id)
        if several or call is None or site is None or not site.is_called_with_arrays:
            return None
        if (fn := site.content.function.fn) is None:
            return None
        key, me = (thread, epoch), threading.get_ident()
        self._runs[id(items)] = run, untracked, items
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
            result = _bytes_of(site.content, site.where, returned)
        except BaseException as error:
            result = Replay(failures, observers, call, key, settle).end(error, site, token, device)
            self._fail(key)
        self._running.pop(me, None)
        if failures.frames:
            failures.clear_frames()
        items[0] = parts = payload = returned = None  # arguments live no longer than the function's run
        suspended = self._runs.pop(id(items), None) is not None
        if suspended and isinstance(result, list):
            return native.conclude(run, untracked, reply, result)
        if suspended:
            native.resume(run, untracked)
        answer_with(reply, result)
        return native.reclaim()


def _bytes_of(call: HostCall, where: Where, returned: Any) -> list[Any]:
    """What a function returned, as it travels."""
    only = call.only_result
    if (
        only is not None
        and type(returned) is np.ndarray
        and returned.dtype is only.stored
        and returned.shape == only.shape
    ):
        return [to_bytes(returned)]  # what `take_results` comes to, for what is most common
    return [to_bytes(x) for x in take_results(call, where, returned, call.results or ())]
