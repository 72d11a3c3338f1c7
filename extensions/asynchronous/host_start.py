"""Functions that run on the host while the program continues: the records from which they begin, and what waits
there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from effects._model.content import Content, Report, described_by
from effects._model.function import HostFunction
from effects._model.record import Record
from effects.extensions.asynchronous.host_runs import host_runs


@described_by("async_start")
@dataclasses.dataclass(frozen=True)
class HostStart(Content):
    """The start of a function on the host. Its arguments are those of the function and, last, the number."""

    function: HostFunction
    name: str

    counts_as_effect = False  # the done is counted
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
        host_runs.start(self.function, records)
