"""Programs that call handlers of the user's, and whose calls have returned: what such a handler fails with is found
here, and kept until the thread's next call or barrier raises it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from effects.dispatch.draining.background import uninterrupted
from effects.dispatch.draining.failures import Failures
from effects.dispatch.draining.output_tokens import close_failed, failure_in, failures_of
from effects.dispatch.streams.stream import Stream
from effects.dispatch.streams.table import Streams

Wait = Callable[..., bool]
"""`wait(done, seconds=None)`, as `Drain.wait`."""

_LOOK = 0.005
"""Seconds after which a thread that waits looks whether a program is over."""


class Settling:
    """Looks whether programs have failed by a handler: at each once, in one thread."""

    def __init__(self, streams: Streams, failures: Failures) -> None:
        self._streams = streams
        self._failures = failures

    def look(self) -> None:
        """Ends the epochs of programs that have failed, and settles what threads have left that have ended. The leader
        of the drain calls it."""
        close_failed(self._streams)
        for stream in self._streams.ended():
            if stream.unsettled:
                self.settle_over(stream)

    def settle_over(self, stream: Stream, wait: Wait | None = None) -> bool:
        """Settles the programs of a stream that are over. Returns whether any has failed by a handler; with `wait`,
        once its other effects are done."""
        over = [number for number in [*stream.unsettled] if is_over(stream, number)]
        failed = [number for number in over if self._settle(stream, number, wait)]
        return bool(failed)

    def settle_all(
        self, stream: Stream, names: frozenset[str] | None, deadline: float | None, wait: Wait
    ) -> int | None:
        """Waits for the programs of a stream, or those with effects of these names, and settles them. Returns the
        number of one that is not over when the time is up."""
        for number, (_, traits, _) in [*stream.unsettled.items()]:
            if names is not None and not names & {*traits.effects}:
                continue
            while not is_over(stream, number):
                left = _LOOK if deadline is None else min(_LOOK, deadline - monotonic())
                if left < 0:
                    return number
                wait(lambda number=number: is_over(stream, number), left)
            self._settle(stream, number, wait)
        return None

    def _settle(self, stream: Stream, number: int, wait: Wait | None) -> bool:
        if (program := stream.unsettled.get(number)) is None:
            return False  # another thread was faster
        output_token = program[2]
        if output_token.is_deleted() or not (said := failures_of(output_token)):
            stream.settle(number)
            return False
        if wait is not None:
            wait(lambda: number not in stream.calls)
        return uninterrupted(lambda: self._keep_failure(stream, number, said))

    def _keep_failure(self, stream: Stream, number: int, said: list[Exception]) -> bool:
        if (program := stream.settle(number)) is None:
            return False
        if (failure := failure_in(said, program[0])) is None:
            return False  # of another kind: its results raise it
        self._failures.add((stream.thread, number), failure, stops=False)
        return True


def is_over(stream: Stream, number: int) -> bool:
    """Whether a program is over, or settled."""
    program: Any = stream.unsettled.get(number)
    return program is None or program[2].is_deleted() or program[2].is_ready()
