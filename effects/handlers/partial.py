"""The logs of a run that has crashed: what all processes have come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from effects.handlers._process_logs import START, Line, Log

_Sequence = tuple[int, int]
"""A thread and an order domain, whose records are in the log in program order."""
_At = tuple[int, int, int]
"""Where a record is among them: epoch, phase, index."""


@dataclasses.dataclass(frozen=True)
class End:
    """Where the log of a process ends.

    Attributes:
        path: The log.
        last: Its last record, as messages show it; empty if it has none.
        left_out: How many of its records are behind what all processes have come to.
    """

    path: str
    last: str
    left_out: int


def cut(logs: Sequence[Log]) -> list[End]:
    """Takes from logs what is behind the common part. Returns where each ends."""
    last: list[dict[_Sequence, _At]] = [_last_of_each(log) for log in logs]
    limits: dict[_Sequence, _At] = {}
    for log in logs:
        for line in log.placed.values():
            of, _ = _where(line)
            if of not in limits:
                limits[of] = min(ends[of] for ends in last if of in ends)
            if line.kind == "whole" and any(of not in last[process] for process in line.record["processes"]):
                limits[of] = (START, START, START)  # who should have it has nothing of them
    return [_cut(log, limits) for log in logs]


def _last_of_each(log: Log) -> dict[_Sequence, _At]:
    last: dict[_Sequence, _At] = {}
    for line in log.placed.values():
        of, at = _where(line)
        last[of] = max(at, last.get(of, at))
    return last


def _where(line: Line) -> tuple[_Sequence, _At]:
    assert line.place is not None
    thread, epoch, domain, phase, index, *_ = line.place
    return (thread, domain), (epoch, phase, index)


def _cut(log: Log, limits: dict[_Sequence, _At]) -> End:
    def is_common(line: Line) -> bool:
        of, at = _where(line)
        return at <= limits[of]

    end = log.lines[-1].shown if log.lines else ""
    behind = {place for place, line in log.placed.items() if not is_common(line)}
    log.placed = {place: line for place, line in log.placed.items() if place not in behind}
    unplaced = sum(len(log.behind.pop(place)) for place in [*log.behind] if place in behind)
    return End(log.path, end, len(behind) + unplaced)
