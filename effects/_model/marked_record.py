"""Records whose values are marks. The text that Python makes of one says how native code makes that text of any record
of the site."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from effects._model.device import places_are_plain
from effects._model.mark import MARK, Mark, Unfilled
from effects._model.native_text import CODES, Piece, Plan, Style, field_of
from effects._model.operand import Operand
from effects._model.record import Record
from effects._model.site import Site
from effects._wire import HEADER, header_offset


class MarkedRecord(Record):
    """A record of a site in which each value is a mark.

    Args:
        site: Its site, which is the same in all its records.
        with_header: Whether there is a mark too for what its header says, which lies ahead of the payload.

    Raises:
        Unfilled: if records of this site take Python.
    """

    __slots__ = ("_marks", "_thread")

    def __init__(self, site: Site, with_header: bool = False):
        if site.num_dynamic_sizes or site.per_shard or not _is_plain(site.tree):
            raise Unfilled
        self._marks: list[Mark] = []
        token, device, thread, time = [None] * 4, None, None, None
        if with_header:
            if not places_are_plain():
                raise Unfilled
            first = header_offset("token") - HEADER.itemsize
            token = [self._number("uint32", first + 4 * i) for i in range(4)]
            device = self._number("device", header_offset("device") - HEADER.itemsize)
            thread = self._number("thread", first)
            time = self._number("float64", header_offset("time") - HEADER.itemsize)
        hidden = len(site.operands) - len(site.places)
        grid = None
        if site.grid is not None:
            size, (rank,), at = site.grid.stored.itemsize, site.grid.shape, site.offsets[hidden - 1]
            grid = tuple(self._number("int32", at + size * axis) for axis in range(rank))
        operands = zip(site.operands[hidden:], site.offsets[hidden:], strict=True)
        options = site.content.print_options
        values = [self._operand(operand, options, offset) for operand, offset in operands]
        lane = tuple(self._number("lane", axis) for axis in range(len(site.lanes)))
        super().__init__(site, tuple(token), device, lane, values, grid, time)
        self._thread = thread

    @property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self._site.arguments(self._payload)  # one lane's already
        return args, self._site.content.in_order(kwargs)

    @property
    def thread(self) -> Any:
        return self._thread

    @property
    def device(self) -> Any:
        if self._ordinal is None:
            raise Unfilled
        return self._ordinal

    @property
    def text(self) -> str:
        if not self._site.content.only_fills:
            raise Unfilled
        return super().text

    def is_value(self, text: str) -> bool:
        """Whether a text is a mark that stands for the value itself."""
        return (found := re.fullmatch(MARK, text)) is not None and found[1] == "v"

    def pieces(self, text: str, style: Style | None = None) -> Iterator[Piece]:
        """A text that was made of the record, as what stands between marks, each piece with the field behind it.

        `style`: in which values are shown that stand there themselves.
        """
        literal = 0
        for found in re.finditer(MARK, text):
            way, number, spec = found.groups()
            own = {"f": Style.FORMAT, "s": Style.STRING, "r": Style.REPR, "v": style}[way]
            field = None if own is None else self._marks[int(number)].field_of(own, bytes.fromhex(spec).decode())
            if field is None:
                raise Unfilled
            yield field._replace(literal=text[literal : found.start()])
            literal = found.end()
        yield Piece(text[literal:])

    def _mark(self, field_of: Callable[[Style, str], Piece | None]) -> Any:
        self._marks.append(Mark(len(self._marks), field_of))
        return self._marks[-1]

    def _number(self, type: str, offset: int) -> Any:
        """A number of the record's own, as Python has it."""

        def field(style: Style, spec: str) -> Piece | None:
            return None if spec else Piece("", CODES[type], offset, style=Style.PLAIN)

        return self._mark(field)

    def _operand(self, operand: Operand, options: Mapping[str, Any] | None, offset: int) -> Any:
        return self._mark(lambda style, spec: field_of(operand, style, spec, options, offset))


def plan_of(site: Site, pieces: Iterable[Piece]) -> Plan:
    """The plan whose pieces were made of a site's marked record."""
    mask = None
    if site.mask is not None:
        mask = Piece("", CODES["bool"], site.offsets[0], site.mask.strides)
    return Plan([*pieces], site.lanes, mask)


def text_plan(site: Site, shown: Callable[[Record], str]) -> Plan | None:
    """How native code makes the text that `shown` makes of records of this site; None where Python must do it."""
    try:
        record = MarkedRecord(site)
        plan = plan_of(site, record.pieces(shown(record)))
        "".join(piece.literal for piece in plan.pieces).encode()
    except UnicodeEncodeError:  # a lone surrogate: Python's output decides what becomes of it
        return None
    except Exception:  # a specification of another value's, an attribute: a mark has neither
        return None
    return plan


@functools.lru_cache(maxsize=256)
def _is_plain(tree: Any) -> bool:
    """Whether arguments are lists, tuples and dictionaries in each other, and no class of a user's is among them."""
    if tree is None or (node := tree.node_data()) is None:
        return True
    return node[0] in (tuple, list, dict, type(None)) and all(map(_is_plain, tree.children()))
