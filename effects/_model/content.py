"""What the records of a site mean: one protocol, which every kind of effect implements for itself.

Whoever describes, reads, shows or exports records asks the content of their site, and never which class it is of. So a
new effect is one module, with its content and the function that users call, beside the public names and its test.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from effects._model.callback import HostCall
    from effects._model.record import Record
    from effects._model.site import Operand, Site
    from effects._model.text import Plan

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


class Content(Protocol):
    """The content of a site.

    Implementations are frozen dataclasses that derive from this class, under `described_by`. They bring `title`,
    `describe`, `from_description` and `text`; everything else has a default.
    """

    # What it is, while a program is traced and lowered.

    @property
    def title(self) -> str:
        """What messages call it: a function's name, an event, a format."""
        ...

    @property
    def call(self) -> HostCall | None:
        """The function of the user's that replaying a record calls; None if it calls none."""
        return None

    @property
    def calls_handler(self) -> bool:
        """Whether the records are published by the handler of a custom call, which is part of the program."""
        return False

    @property
    def delivered_individually(self) -> bool:
        """Whether each of its records is handed over by itself, since a function of the user's may be called."""
        return self.call is not None

    @property
    def inner_sites(self) -> tuple[Site, ...]:
        """The sites of the records that its records consist of, if they do."""
        return ()

    @property
    def raises_itself(self) -> bool:
        """Whether what its function raises says all by itself, and is raised as it is."""
        return False

    @property
    def runs_with_empty_mask(self) -> bool:
        """Whether a device comes to it even if no lane has it there. Its content then says what this means."""
        return False

    @property
    def is_portable(self) -> bool:
        """Whether another process can rebuild it from its description."""
        return self.call is None or self.call.function.registered

    @property
    def is_available(self) -> bool:
        """Whether this process has all that replaying a record needs."""
        return self.call is None or self.call.function.fn is not None

    def resized(self, resize: Callable[[Operand], Operand]) -> Self:
        """The content with other sizes in place of those that are symbols."""
        return self

    # As a description, which travels with a program.

    def describe(self) -> dict[str, Any]:
        """All of it, as JSON has it. The first key is that of `described_by`."""
        ...

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> Self:
        """The content that describes itself so."""
        ...

    # When its records are read.

    def read(self, site: Site, payload: Any) -> Site:
        """The site of one record, where the record itself says what it means."""
        return site

    counts_as_effect = True
    """Whether its records are effects by themselves where effects are counted. An attribute, as the next one."""

    has_parts = False
    """Whether its records consist of others. An attribute, since the drain looks at it for every callback."""

    @property
    def only_fills(self) -> bool:
        """Whether `text` does nothing with a record's values but show them in its place."""
        return False

    @property
    def print_options(self) -> Mapping[str, Any] | None:
        """NumPy's print options for `text`; None: those that are in force at the call."""
        return None

    shows_newest = False
    """Whether a record shows all that those of its site before it have shown, so that `show` may get fewer of them."""

    def parts(self, site: Site, payload: Any) -> Iterable[tuple[Site, Any]]:
        """Site and payload of each record that a record consists of."""
        return ((site, payload),)

    def warning(self, site: Site, payload: Any) -> str | None:
        """What the user is warned of when a record that consists of others is replayed."""
        return None

    @property
    def room_needed(self) -> int:
        """How many words a program is given when it is traced again, after such a warning."""
        return 0

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The named arguments in the order in which the user wrote them. Pytrees sort them by name."""
        return fields

    @property
    def labels(self) -> Mapping[str, Any]:
        """What is the same in all its records, by the names that handlers know it by, such as `event`."""
        return {}

    def text(self, record: Record) -> str:
        """A record as text."""
        ...

    def to_json(self, record: Record) -> dict[str, Any]:
        """What a record's JSON object says besides fields, arguments and place."""
        return {**self.labels, "text": record.text}

    # When its records are replayed.

    def native_plan(self, site: Site) -> Plan | None:
        """How native code makes the text that `show` writes; None if it cannot."""
        return None

    asks_before_text = False
    """Whether `writes_text` is asked each time. Otherwise native code writes the text by itself. An attribute, too."""

    @property
    def writes_text(self) -> bool:
        """Whether what `show` does now is to write that text."""
        return True

    def yields_to(self, takes_lines: bool) -> bool:
        """Whether `show` has nothing to do where a handler gets the records, which `takes_lines` or does not."""
        return False

    def is_shown(self, suppressed: bool) -> bool:
        """Whether `show` has anything to do. `suppressed`: a capture keeps prints and logs from the output."""
        return not suppressed

    def show(self, records: Iterable[Record], write: Output, report: Report) -> None:
        """What becomes of records beside what handlers and captures make of them: the lanes of one effect, in order.
        Runs in a thread of the drain, in program order. `write` takes text for the output of the program's call, and
        `report` what the next call or barrier raises, though the effect was carried out and those after it are."""


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
