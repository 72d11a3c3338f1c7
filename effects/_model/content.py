"""The meaning of a site's records: a class for each kind of effect.

Code that describes, reads, shows or exports records asks the content of their site. `Content` is the interface of all
contents. Subclasses of it, the parts, add what only some contents have: a `HostCall` calls a user function, a
`NativeText` can be made text by native code, the records of a `Composite` consist of other records, and the handler of
a custom call publishes the records of a `HandlerContent`. So a new effect is one module, with its content and the
function that users call, beside the public names and its test.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from effects import _errors as errors
from effects._model.function import HostFunction
from effects._model.operand import Operand
from effects._model.plan import Plan

if TYPE_CHECKING:
    from effects._model.record import Record
    from effects._model.site import Site

_PAGE = "docs/how-to/add-an-effect.md#on-the-host-a-content"
MSG_UNKNOWN_CONTENT = (
    "A program has an effect whose records are described by {kind!r}, and this process knows those described by "
    "{known}. A description can be read where the modules of all effects of the program are imported. Install the "
    "version of token-effects that the program was made with, or import the module that declares the effect."
)


Report = Callable[[BaseException], None]
"""Takes the exception that the next call or barrier raises."""


class Output(Protocol):
    """The output for the text of a program's effects."""

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

    # While a program is traced and lowered.

    delivered_individually: ClassVar[bool] = False
    """True if records are delivered one by one, since each may call a user function."""

    may_be_left_out: ClassVar[bool] = True
    """True if a filter may drop records."""

    @property
    def title(self) -> str:
        """The name in messages: a function's name, an event, a format. By default the first field."""
        return next(iter(self.describe().values()))

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        """The user functions that records call. Another process needs functions registered under the same names."""
        return ()

    @property
    def is_portable(self) -> bool:
        """True if another process can rebuild the content from its description."""
        return all(function.registered for function in self.functions)

    results: tuple[Operand, ...] | None = None
    """The types of the results that a program waits for at the effect, in one lane; None if it waits for none."""

    def resized(self, resize: Callable[[Operand], Operand]) -> Content:
        """The content with `resize` applied to each operand in it."""
        return self

    # As a description, which travels with a program.

    def describe(self) -> dict[str, Any]:
        """The content as JSON: by default its fields, without those that have their defaults. The first key is
        `kind`."""
        first, *others = dataclasses.fields(self)
        values = [(field, getattr(self, field.name)) for field in others]
        described = {field.name: value for field, value in values if value != field.default}
        return {self.kind: getattr(self, first.name), **described}

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Self:
        """The content that has this description."""
        (_, first), *others = description.items()
        return cls(*[_tuples(first)], **{name: _tuples(value) for name, value in others})

    # When its records are read.

    counts_as_effect: ClassVar[bool] = True
    """True if each record counts as an effect, where effects are counted."""

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The named arguments in the order in which the user wrote them. Pytrees sort them by name."""
        return fields

    @property
    def labels(self) -> Mapping[str, Any]:
        """The values that are the same in all records, by the names that handlers use, such as `event`."""
        return {}

    def text(self, record: Record) -> str:
        """A record as text."""
        raise NotImplementedError

    def line(self, record: Record) -> str:
        """The line that is written for a record, by the drain or by a later reader: level or effect, text and
        source line."""
        name, text, where = parts_of_line(record)
        return f"{name:<8} {text} {where}\n"

    def resolve(self, site: Site, payload: Any) -> Site:
        """The site of one record; the sizes in `site` are resolved already."""
        return site

    # When its records are replayed.

    def direct_call(self, site: Site) -> tuple[Any, ...] | None:
        """The function call that native code makes with a record's values; None if Python makes the call, or if there
        is no call. See `HostCall`."""
        return None

    shows_newest: ClassVar[bool] = False
    """True if a record supersedes the earlier records of its site, so that `show` may get the newest ones only."""

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        """True if `show` has anything to do.

        Args:
            suppressed: A capture keeps prints and logs from the output.
            takes_lines: Whether a handler takes the place of the output for lines; None if no handler gets the records.
        """
        return not suppressed

    def show(self, records: Iterable[Record], write: Output, report: Report) -> None:
        """Carries out the effects of records, one for each lane, in order; handlers and captures are served elsewhere.

        Runs in a thread of the drain, in program order. `write` takes text for the output of the program's call.
        `report` takes an exception for the next call or barrier; later effects are carried out all the same."""


def _tuples(value: Any) -> Any:
    """Converts the lists that JSON reads to tuples, which contents have in their place."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def parts_of_line(record: Record) -> tuple[str, str, str]:
    """The parts of a record's line: the name of its level or effect, its text, and its source line."""
    name = record.effect if record.level is None else logging.getLevelName(record.level)
    lane = f" lane={record.lane}" if record.lane else ""
    grid = f" grid={record.grid}" if record.grid else ""
    text = record.text.replace("\n", " ") + lane + grid
    return name, text, f"{os.path.basename(record.where.file)}:{record.where.line}"


class NativeText(Content):
    """A part: native code, too, can make the lines of records from their values."""

    asks_before_text: ClassVar[bool] = False
    """True if `writes_text` is read before each write. Otherwise native code writes the text without Python."""

    @property
    def writes_text(self) -> bool:
        """True if `show` would do nothing now but write the lines."""
        return True

    @property
    def only_fills(self) -> bool:
        """True if `text` does nothing with a record's values but insert their text."""
        return True

    @property
    def print_options(self) -> Mapping[str, Any] | None:
        """NumPy's print options for `text`; None: those that are in force at the call."""
        return None

    def native_plan(self, site: Site) -> Plan | None:
        """The plan by which native code makes `line`; None if native code cannot."""
        return None


class Composite(Content):
    """A part: a record consists of other records, such as the log of a kernel."""

    delivered_individually = True

    sites: tuple[Site, ...]
    """The sites of the records inside."""

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        return tuple(function for site in self.sites for function in site.content.functions)

    def parts(self, site: Site, payload: Any) -> Iterable[tuple[Site, Any]]:
        """Site and payload of each record inside a record."""
        raise NotImplementedError

    def warning(self, site: Site, payload: Any) -> tuple[str, int] | None:
        """The text of a warning that is due when a record is replayed, and the number of words that all such records
        need in a program that is traced again; None if no warning is due."""
        return None


class HandlerContent(Content):
    """A part: the handler of a custom call publishes the records, and each record carries its own content."""


_C = TypeVar("_C", bound=type[Content])

_kinds: dict[str, type[Content]] = {}
"""The classes of contents, by the first key of their descriptions. Filled by imports, and only read afterwards."""

_later: dict[str, str] = {}
"""By the same key, for contents that few programs have: the module that registers the class."""


def described_later(key: str, module: str) -> None:
    """Declares that this module is imported when a description with this first key is read."""
    _later[key] = module


def described_by(key: str) -> Callable[[_C], _C]:
    """Registers a class of contents: a description with this first key is of that class."""

    def register(kind: _C) -> _C:
        known = _kinds.setdefault(key, kind)
        assert known is kind, f"contents described by {key!r} are known already"
        kind.kind = key
        return kind

    return register


def content_from(description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Content:
    """The content that has this description. A function is known by its name only."""
    key = next(iter(description))
    if key in _later:
        importlib.import_module(_later[key])
    if key not in _kinds:
        raise errors.value_error(MSG_UNKNOWN_CONTENT.format(kind=key, known=", ".join(sorted({*_kinds, *_later}))))
    return _kinds[key].from_description(description, read_operand)
