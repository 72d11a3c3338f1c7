"""The sequential reading of what a run file must have.

A record is in the file as soon as its device publishes it. So effects are there that a failure before them keeps from
being carried out, and those that a full ring drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.oracle.devices.reading import DeviceReading
from tests.oracle.language import DOMAINS, EFFECTS, Failure
from tests.oracle.python_ import Reading

if TYPE_CHECKING:
    from tests.oracle.statements.callback import Callback


class RecordedReading(Reading):
    """The reading of records in place of lines. That of a callback has the line of its call."""

    def _leave_out(self, label: str) -> bool:
        stopped, failures, left_out = self.stopped, [*self.failures], self.left_out
        try:
            if not super()._leave_out(label):
                return False
        except Failure:
            self.lines.append(label)
            self.notes.note(label, ())
            raise
        self.stopped, self.failures, self.left_out = stopped, failures, left_out
        return False

    def _call(
        self, callback: Callback, values: Sequence[int], lane: tuple[int, ...], grid: tuple[int, ...] | None
    ) -> None:
        if self.stopped and EFFECTS[callback.kind] and callback.kind not in DOMAINS:
            self.lines.append(callback.label)  # it is not called
        else:
            super()._call(callback, values, lane, grid)


class RecordedDeviceReading(RecordedReading, DeviceReading):
    """The same of programs over several devices."""
