"""Functions that run on the host while the program goes on: the records from which they begin, and what waits there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from effects._model.callback import HostFunction
from effects._model.content import Content, Report, described_by
from effects._model.record import Record

DONE_FUNCTION, UPDATE_FUNCTION = "effects.async_done", "effects.async_update"
"""The names of the functions that wait for one of the host's, which `host_runs.py` registers."""

Start = Callable[[HostFunction, Iterable[Record]], None]

_start: list[Start] = []


def listen(start: Start) -> None:
    """`start(function, records)` is called for each start, with the record of each lane. One module listens."""
    _start[:] = [start]


@described_by("async_start")
@dataclasses.dataclass(frozen=True)
class HostStart(Content):
    """The start of a function on the host. Its arguments are those of the function and, last, the number."""

    function: HostFunction
    name: str

    counts_as_effect = False  # its done is
    may_be_left_out = False

    @property
    def title(self) -> str:
        return self.name

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        return (self.function,)

    def describe(self) -> dict[str, Any]:
        function = self.function
        return {"async_start": function.key, "name": self.name, "registered": function.registered}

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Any) -> HostStart:
        key, name, registered = (description[field] for field in ("async_start", "name", "registered"))
        return cls(HostFunction(None, key, name, registered), name)

    def text(self, record: Record) -> str:
        return f"start of {self.name}({', '.join(map(str, record.args[0]))})"

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        return True

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        _start[0](self.function, records)
