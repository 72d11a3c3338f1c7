"""What the records of a site mean: a class for each kind of effect.

Whoever describes, reads, shows or exports records asks the content of their site. `Content` has what all contents
answer. What only some have is a part, a class from which these derive in its place: a `HostCall` calls a function of
the user's, native code makes the text of a `NativeText` too, the records of a `Composite` consist of others, and those
of a `HandlerContent` come from the handler of a custom call. So a new effect is one module, with its content and the
function that users call, beside the public names and its test.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from effects._model.function import HostFunction
from effects._model.operand import Operand
from effects._model.plan import Plan

if TYPE_CHECKING:
    from effects._model.record import Record
    from effects._model.site import Site

MSG_UNKNOWN_CONTENT = (
    "A program has an effect whose records are described by {kind!r}, and this process knows those described by "
    "{known}. A description can be read where the modules of all effects of the program are imported. Install the "
    "version of token-effects that the program was made with, or import the module that declares the effect."
)


Report = Callable[[BaseException], None]
"""Takes what the next call or barrier raises."""


class Output(Protocol):
    """Where the text of a program's effects goes."""

    def __call__(self, text: str) -> None: ...

    def show(self, show: Callable[[Any], None]) -> None:
        """Calls `show(stream)`, if there is an output."""
        ...


class Content:
    """The content of a site.

    Contents are frozen dataclasses that derive from this class, or from its parts, under `described_by`. They bring
    `text`, and those whose records are shown bring `show`. Everything else has a default.
    """

    kind: ClassVar[str]
    """The key of `described_by`."""

    # What it is, while a program is traced and lowered.

    delivered_individually: ClassVar[bool] = False
    """Whether each of its records is handed over by itself, since a function of the user's may be called."""

    may_be_left_out: ClassVar[bool] = True
    """Whether a filter may leave its records out."""

    @property
    def title(self) -> str:
        """What messages call it: a function's name, an event, a format. By default its first field."""
        return next(iter(self.describe().values()))

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        """The functions of the user's that its records have called. Another process needs those of their names."""
        return ()

    @property
    def is_portable(self) -> bool:
        """Whether another process can rebuild it from its description."""
        return all(function.registered for function in self.functions)

    results: tuple[Operand, ...] | None = None
    """The types of what a program waits for at the effect, in one lane; None if it waits for nothing."""

    def resized(self, resize: Callable[[Operand], Operand]) -> Content:
        """The content with `resize` of each operand in it."""
        return self

    # As a description, which travels with a program.

    def describe(self) -> dict[str, Any]:
        """All of it, as JSON has it: by default its fields, without those that are as when none is given. The first key
        is `kind`."""
        first, *others = dataclasses.fields(self)
        values = [(field, getattr(self, field.name)) for field in others]
        described = {field.name: value for field, value in values if value != field.default}
        return {self.kind: getattr(self, first.name), **described}

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Self:
        """The content that describes itself so."""
        (_, first), *others = description.items()
        return cls(*[_tuples(first)], **{name: _tuples(value) for name, value in others})

    # When its records are read.

    counts_as_effect: ClassVar[bool] = True
    """Whether its records are effects by themselves where effects are counted."""

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The named arguments in the order in which the user wrote them. Pytrees sort them by name."""
        return fields

    @property
    def labels(self) -> Mapping[str, Any]:
        """What is the same in all its records, by the names that handlers know it by, such as `event`."""
        return {}

    def text(self, record: Record) -> str:
        """A record as text."""
        raise NotImplementedError

    def line(self, record: Record) -> str:
        """A record as it is written, by the drain and by those who read it later: its level or effect, what happened,
        and where."""
        name, text, where = parts_of_line(record)
        return f"{name:<8} {text} {where}\n"

    def resolve(self, site: Site, payload: Any) -> Site:
        """The site of one record, whose sizes are in `site` by now."""
        return site

    # When its records are replayed.

    def direct_call(self, site: Site) -> tuple[Any, ...] | None:
        """The call of a function that native code makes with a record's values; None if Python makes it, or there is
        none. See `HostCall`."""
        return None

    shows_newest: ClassVar[bool] = False
    """Whether a record shows all that those of its site before it have shown, so that `show` may get fewer of them."""

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        """Whether `show` has anything to do.

        Args:
            suppressed: A capture keeps prints and logs from the output.
            takes_lines: Whether a handler takes the place of the output for lines; None if no handler gets the records.
        """
        return not suppressed

    def show(self, records: Iterable[Record], write: Output, report: Report) -> None:
        """What becomes of records beside what handlers and captures make of them: the lanes of one effect, in order.
        Runs in a thread of the drain, in program order. `write` takes text for the output of the program's call, and
        `report` what the next call or barrier raises, though the effect was carried out and those after it are."""


def _tuples(value: Any) -> Any:
    """What JSON has read, as a content has it."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def parts_of_line(record: Record) -> tuple[str, str, str]:
    """The name of its level or of the effect, what happened, and where."""
    name = record.effect if record.level is None else logging.getLevelName(record.level)
    lane = f" lane={record.lane}" if record.lane else ""
    grid = f" grid={record.grid}" if record.grid else ""
    text = record.text.replace("\n", " ") + lane + grid
    return name, text, f"{os.path.basename(record.where.file)}:{record.where.line}"


class NativeText(Content):
    """A part: native code makes the line of records, too, from their values."""

    asks_before_text: ClassVar[bool] = False
    """Whether `writes_text` is asked each time. Otherwise native code writes the text by itself."""

    @property
    def writes_text(self) -> bool:
        """Whether what `show` does now is to write that text."""
        return True

    @property
    def only_fills(self) -> bool:
        """Whether `text` does nothing with a record's values but show them in its place."""
        return True

    @property
    def print_options(self) -> Mapping[str, Any] | None:
        """NumPy's print options for `text`; None: those that are in force at the call."""
        return None

    def native_plan(self, site: Site) -> Plan | None:
        """How native code makes `line`; None if it cannot."""
        return None


class Composite(Content):
    """A part: the records consist of others, such as the log of a kernel."""

    delivered_individually = True

    sites: tuple[Site, ...]
    """Of the others."""

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        return tuple(function for site in self.sites for function in site.content.functions)

    def parts(self, site: Site, payload: Any) -> Iterable[tuple[Site, Any]]:
        """Site and payload of each record that a record consists of."""
        raise NotImplementedError

    def warning(self, site: Site, payload: Any) -> tuple[str, int] | None:
        """What the user is warned of when a record is replayed, and how many words all such records need in a program
        that is traced again."""
        return None


class HandlerContent(Content):
    """A part: the handler of a custom call publishes the records, each of which says itself what it means."""

    def resolve(self, site: Site, payload: Any) -> Site:
        raise NotImplementedError


_C = TypeVar("_C", bound=type[Content])

_kinds: dict[str, type[Content]] = {}
"""By the first key of their descriptions. Filled when modules are imported, and only read afterwards."""

_later: dict[str, str] = {}
"""The same for contents that few programs have: the modules that make them known."""


def described_later(key: str, module: str) -> None:
    """Has this module imported when a description is read whose first key is this one."""
    _later[key] = module


def described_by(key: str) -> Callable[[_C], _C]:
    """Makes a class of contents known: a description whose first key is this one is of that class."""

    def register(kind: _C) -> _C:
        known = _kinds.setdefault(key, kind)
        assert known is kind, f"contents described by {key!r} are known already"
        kind.kind = key
        return kind

    return register


def content_from(description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Content:
    """The content that describes itself so. A function is known by its name only."""
    key = next(iter(description))
    if key in _later:
        importlib.import_module(_later[key])
    if key not in _kinds:
        raise ValueError(MSG_UNKNOWN_CONTENT.format(kind=key, known=", ".join(sorted({*_kinds, *_later}))))
    return _kinds[key].from_description(description, read_operand)
