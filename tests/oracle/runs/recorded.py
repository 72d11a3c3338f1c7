"""The sequential reading of what a run file must have.

A record is in the file as soon as its device publishes it. So effects are there that a failure before them keeps from
being carried out, and those that a full ring drops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tests.oracle.devices.reading import DeviceReading
from tests.oracle.language import DOMAINS, EFFECTS, Failure
from tests.oracle.python_ import Point, Reading

if TYPE_CHECKING:
    from tests.oracle.language import Program
    from tests.oracle.statements.callback import Callback


class RecordedReading(Reading):
    """The reading of records in place of lines. That of a callback has the line of its call.

    Programs that a callback has called stand behind its record, which may have several lanes, or be a kernel's log.
    """

    def __init__(self, stops: bool = False, rewritten: Collection[Program] = ()) -> None:
        super().__init__(stops, rewritten)
        self._record: Any = None  # the newest, and the lines of what its calls have called
        self._called: list[str] = []

    def interpret(self, program: Program, state: Sequence[int], number: int) -> tuple[int, ...]:
        try:
            return super().interpret(program, state, number)
        finally:
            self._end_record()

    @contextlib.contextmanager
    def _noted(self, label: str, lane: tuple[int, ...], position: Any = None) -> Iterator[None]:
        is_log = position is not None and position[0] in ("log", "logs")
        record = position if is_log else (label, position) if lane else None
        if record != self._record or record is None:
            self._end_record()
        self._record = record
        start = len(self.lines)
        try:
            with super()._noted(label, lane, position):
                try:
                    yield
                finally:
                    self._called += self.lines[start + 1 :]
                    del self.lines[start + 1 :]
        finally:
            if record is None:
                self._end_record()

    def _has_all(self) -> bool:
        return self._log is not None  # the log of a kernel is in the file as it is

    def _end_record(self) -> None:
        self.lines += self._called
        self.notes.places += [None] * len(self._called)
        self._record, self._called = None, []

    def _leave_out(self, label: str) -> bool:
        stopped, failures, left_out = self.stopped, [*self.failures], self.left_out
        try:
            if not super()._leave_out(label):
                return False
        except Failure:
            if self._kinds.get(label) != "async_host":  # its line is of what its function prints
                self.lines.append(label)
                self.notes.note(label, ())
            raise
        self.stopped, self.failures, self.left_out = stopped, failures, left_out
        return False

    def _leave_out_lanes(self, points: Sequence[Point]) -> None:
        """A record has all lanes."""
        for place, lane, label, _ in points:
            self.lines.append(label)
            self.notes.note(label, lane, place)

    def _call(
        self, callback: Callback, values: Sequence[int], lane: tuple[int, ...], grid: tuple[int, ...] | None
    ) -> None:
        if self.stopped and EFFECTS[callback.kind] and callback.kind not in DOMAINS:
            self.lines.append(callback.label)  # it is not called
        else:
            super()._call(callback, values, lane, grid)


class RecordedDeviceReading(RecordedReading, DeviceReading):
    """The same of programs over several devices."""

    def __init__(self, stops: bool = False) -> None:
        DeviceReading.__init__(self, stops)
        self._record, self._called = None, []
