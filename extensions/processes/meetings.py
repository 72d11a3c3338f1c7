"""The barrier over all processes of `jax.distributed`, by the service through which these agree."""

from __future__ import annotations

import collections
import functools
import re
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from effects import _errors as errors
from effects import _jax
from effects.dispatch.runtime.background import Background
from effects.dispatch.runtime.runtime import meet_with, runtime
from effects.lowering.native_module import native

MSG_GLOBAL_TIMEOUT = (
    "The barrier of {count} processes {waited}, and {problem}. It returns when every process has called it and what "
    "each of them issued before is visible there. Pass a longer `timeout`, or read the output of the missing process: "
    "it waits elsewhere, or has ended."
)


_LONGEST = 2**31 - 1
"""The milliseconds for which the service waits if no limit is given: some weeks."""

_GRACE = 5.0
"""Seconds that the service may take, after the time is up, to report the processes that have come."""


def _meet(service: Any, key: str, timeout: float | None, deadline: float | None) -> None:
    """Waits until this thread of all processes is here, whose own effects are visible by then. Threads have the same
    numbers in all processes, so those that call barriers at the same time each meet their own."""
    # In a thread of its own: the service's client ignores interrupts, and also our deadline if another process came
    # first with a later one.
    waiting = Background(lambda: _wait(service, key, deadline))
    waiting.start()
    answers = waiting.wait(None if deadline is None else max(0.0, deadline - monotonic()) + _GRACE)
    problem = waiting.result if answers else "the service that knows who has come does not answer"
    if problem is None:
        return
    raise errors.BarrierTimeout(
        MSG_GLOBAL_TIMEOUT.format(
            count=_jax.process_count(),
            waited="waited" if timeout is None else f"waited {timeout:g} s",
            problem=problem,
        )
    )


def _wait(service: Any, key: str, deadline: float | None) -> str | None:
    """Why not all processes have come; None if they have."""
    left = _LONGEST if deadline is None else int(1000 * (deadline - monotonic()))
    try:
        service.wait_at_barrier(key, min(max(left, 1), _LONGEST))
    except Exception as error:
        if errors.TIMED_OUT in str(error):
            late = re.search(r"timed out task names:\n((?:.*\d\n)+)", str(error))  # the service's error texts
            names = [f"process {name}" for name in re.findall(r"(\d+)\n", late[1])] if late else []
            return f"these had not come in time: {', '.join(names) or 'JAX does not say which'}"
        died = re.search(r"Task (\d+) heartbeat timeout", str(error))
        reason = f"process {died[1]} sends no heartbeats any more" if died else str(error).splitlines()[0]
        # JAX is about to end this process too, so this may be its last message.
        print(f"A barrier of all processes cannot go on: {reason}.", file=sys.stderr, flush=True)
        return f"{reason}, so that it has died"
    return None


class GlobalBarriers:
    """The barriers over all processes that threads of this one have called."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()  # by thread: its number of calls
        self._lock = threading.Lock()

    def next(self) -> Callable[[float | None, float | None], None] | None:
        """The calling thread's next one; None if there is but one process."""
        service = _jax.coordination_service()
        if service is None:
            return None
        key = f"token-effects/barrier/{self._name_of_thread()}"
        with self._lock:  # counted even if it fails, so that numbers agree between processes
            self._counts[key] += 1
            number = self._counts[key]
        return functools.partial(_meet, service, f"{key}/{number}")

    def _name_of_thread(self) -> str:
        """The name of the calling thread, the same in all processes."""
        if native.is_nested():
            running = runtime.drain.running.get(threading.get_ident())
            return "callbacks" if running is None else f"callbacks-{running[1][0]}"
        return str(runtime.streams.current().thread)


meet_with(GlobalBarriers().next)
