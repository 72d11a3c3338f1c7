"""Lines: the content of `fx.print`, `fx.print_grad` and `jax.debug.print`."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import numpy as np

from effects._model.content import Content, Report, described_by
from effects._model.format import fill
from effects._model.marked_record import text_plan
from effects._model.native_text import Plan
from effects._model.record import Record, after_shard, shown_index
from effects._model.site import Site

_OF_RECORD: dict[str, Callable[[Record], Any]] = {
    "device": lambda record: record.device,
    "lane": lambda record: record.lane,
    "grid": lambda record: record.grid,
    "index": shown_index,
}
"""What a field shows that the record fills."""


@described_by("line")
@dataclasses.dataclass(frozen=True)
class Line(Content):
    """A line of `fx.print`, or of `jax.debug.print`, which knows NumPy's print options when it is traced."""

    fmt: str
    options: tuple[tuple[str, Any], ...] | None = None  # NumPy's print options; None: those in force at the call
    of_record: tuple[str, ...] = ()  # fields that are filled with what the record says: `device`, `grid`, `index`

    @property
    def title(self) -> str:
        return self.fmt

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"line": self.fmt}
        if self.options is not None:
            described["options"] = self.options
        if self.of_record:
            described["of_record"] = self.of_record
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Any) -> Self:
        options = description.get("options")
        options = options and tuple((name, value) for name, value in options)
        return cls(description["line"], options, tuple(description.get("of_record", ())))

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"fmt": self.fmt}

    @functools.cached_property
    def only_fills(self) -> bool:
        """What a specification pads or cuts behind a conversion has to be there."""
        if "!" not in self.fmt:
            return True
        return not any(spec and conversion for _, _, spec, conversion in string.Formatter().parse(self.fmt))

    @property
    def print_options(self) -> Mapping[str, Any] | None:
        return None if self.options is None else self._options

    def text(self, record: Record) -> str:
        if not self.of_record:
            text = self._fill(record.args, record.fields)
            return after_shard(record, text) if self.options is None else text  # JAX shows a shard by itself
        own = {name: _OF_RECORD[name](record) for name in self.of_record}
        return self._fill(record.args, {**record.fields, **own})

    def _fill(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return fill(self.fmt, args, kwargs) if self.options is None else jax_text(self.fmt, self._options, args, kwargs)

    @functools.cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options or ())

    def native_plan(self, site: Site) -> Plan | None:
        return text_plan(site, lambda record: f"{record.text}\n")

    def yields_to(self, takes_lines: bool) -> bool:
        return takes_lines

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        write_lines(records, lambda record: record.text, write)


def write_lines(records: Iterable[Record], shown: Callable[[Record], str], write: Callable[[str], None]) -> None:
    """Writes a line for each record, all at once."""
    lines: list[str] = []
    try:
        for record in records:
            lines.append(f"{shown(record)}\n")
    finally:  # those before one that cannot be shown, too
        if lines:
            write("".join(lines))


def jax_text(fmt: str, options: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The text of a format of JAX's, under NumPy's print options."""
    if options == np.get_printoptions():  # setting them takes longer than asking
        return fmt.format(*args, **kwargs)
    with np.printoptions(**options):
        return fmt.format(*args, **kwargs)


def line_of(record: Record) -> str:
    """A record of any effect as one line: its level, what happened, and where."""
    name, text, where = parts_of_line(record)
    return f"{name:<8} {text} {where}"


def parts_of_line(record: Record) -> tuple[str, str, str]:
    """The name of its level or of the effect, what happened, and where."""
    name = record.effect if record.level is None else logging.getLevelName(record.level)
    lane = f" lane={record.lane}" if record.lane else ""
    grid = f" grid={record.grid}" if record.grid else ""
    text = record.text.replace("\n", " ") + lane + grid
    return name, text, f"{os.path.basename(record.where.file)}:{record.where.line}"
