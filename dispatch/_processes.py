"""The barrier over all processes of `jax.distributed`, by the service through which these agree."""

from __future__ import annotations

import collections
import re
import sys
import threading
import time
from typing import Any

import jax

from dispatch._drain import drain
from dispatch._streams import current_stream, is_nested
from effects import _errors as errors
from effects import _jax as compat

_LONGEST = 2**31 - 1
"""The milliseconds for which the service waits if no limit is given: some weeks."""

_GRACE = 5.0
"""Seconds that the service may take, after the time is up, to say who has come."""

_counts: collections.Counter[str] = collections.Counter()
_lock = threading.Lock()


class Meeting:
    """One barrier of a thread's with the same thread of all other processes.

    Threads are numbered alike in all processes, so those that call barriers at the same time each meet their own. A
    process notes with the service how far it is, so that the others can say who is missing and why.
    """

    def __init__(self, service: Any):
        self._service = service
        self._key = f"token-effects/barrier/{_name_of_thread()}"
        with _lock:  # counted whatever becomes of it, so that the next one is the same in all processes
            _counts[self._key] += 1
            self._number = _counts[self._key]
        self._note(_WAITS)

    def wait(self, timeout: float | None, deadline: float | None) -> None:
        """Waits until all processes are here, whose own effects are visible by then."""
        self._note(_HERE)
        outcome: list[str | None] = []
        # In a thread of its own, since the service's client does not see an interrupt, nor our deadline if another
        # process came first with a later one.
        waiting = threading.Thread(target=self._wait, args=(deadline, outcome), name="effects-barrier", daemon=True)
        waiting.start()
        waiting.join(None if deadline is None else max(0.0, deadline - time.monotonic()) + _GRACE)
        problem = outcome[0] if outcome else "the service that knows who has come does not answer"
        if problem is None:
            return
        raise errors.BarrierTimeout(
            errors.MSG_GLOBAL_TIMEOUT.format(
                count=jax.process_count(),
                waited="waited" if timeout is None else f"waited {timeout} s",
                problem=problem,
            )
        )

    def _wait(self, deadline: float | None, outcome: list[str | None]) -> None:
        left = _LONGEST if deadline is None else int(1000 * (deadline - time.monotonic()))
        try:
            self._service.wait_at_barrier(f"{self._key}/{self._number}", min(max(left, 1), _LONGEST))
        except Exception as error:
            if errors.TIMED_OUT in str(error):
                outcome.append(self._missing())
                return
            died = re.search(r"Task (\d+) heartbeat timeout", str(error))
            reason = f"process {died[1]} sends no heartbeats any more" if died else str(error).splitlines()[0]
            # JAX is about to end this process too, so this may be the last that is seen of it.
            print(f"A barrier of all processes cannot go on: {reason}.", file=sys.stderr, flush=True)
            outcome.append(f"{reason}, so that it has died")
        else:
            outcome.append(None)

    def give_up(self) -> None:
        """This process does not come: its own effects have not ended in time."""
        self._service.key_value_set(f"{self._key}/given-up/{self._number}/{jax.process_index()}", "")

    def _note(self, stage: str) -> None:
        """How far this process is, in place of what it noted before."""
        note = f"{self._number} {stage}"
        self._service.key_value_set(f"{self._key}/notes/{jax.process_index()}", note, allow_overwrite=True)

    def _missing(self) -> str:
        """Who has not come, as far as they have noted."""
        notes = self._noted("notes")
        given_up = self._noted(f"given-up/{self._number}")
        missing = []
        for process in range(jax.process_count()):
            number, stage = notes.get(process, f"0 {_HERE}").split()
            if int(number) < self._number:
                missing.append(f"process {process} (which has called {number} of this thread's {self._number})")
            elif process in given_up or (int(number) == self._number and stage == _WAITS):
                missing.append(f"process {process} (whose own effects have not ended)")
        if not missing:
            return f"process {jax.process_index()}, this one, came when another had given up"
        return f"these have not come: {', '.join(missing)}"

    def _noted(self, what: str) -> dict[int, str]:
        """By process."""
        notes = self._service.key_value_dir_get(f"{self._key}/{what}/")
        return {int(key.rpartition("/")[2]): note for key, note in notes}


_WAITS, _HERE = "waits", "here"


def _name_of_thread() -> str:
    """The same in all processes."""
    if is_nested():
        running = drain.running.get(threading.get_ident())
        return "callbacks" if running is None else f"callbacks-{running[1][0]}"
    return str(current_stream().thread)


def next_meeting() -> Meeting | None:
    """The calling thread's next barrier over all processes; None if there is but one."""
    service = compat.coordination_service()
    return None if service is None else Meeting(service)
