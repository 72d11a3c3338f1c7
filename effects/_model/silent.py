"""Effects of which nothing becomes: the content of what is recorded only to see what recording costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from effects._model.content import Content, described_by
from effects._model.record import Record
from effects._model.site import Operand, Site


@described_by("silent")
@dataclasses.dataclass(frozen=True)
class Silent(Content):
    """The content in place of another. Neither the output nor a handler gets its records, since they are records of no
    parts."""

    of: str  # the title of that other

    has_parts = True
    is_counted = False

    @property
    def title(self) -> str:
        return self.of

    @property
    def comes_alone(self) -> bool:
        return True

    def describe(self) -> dict[str, Any]:
        return {"silent": self.of}

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Silent:
        return cls(description["silent"])

    def parts(self, site: Site, payload: Any) -> Iterable[tuple[Site, Any]]:
        return ()

    def text(self, record: Record) -> str:
        return ""
