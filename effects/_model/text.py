"""What native code makes text of without Python, and how: fields that it shows byte for byte as Python and NumPy do."""

from __future__ import annotations

import functools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from effects._model.content import NativeText
from effects._model.device import places_are_plain
from effects._model.native import native
from effects._model.operand import Operand, dtype_name
from effects._model.plan import Piece, Plan, PrintOptions, Style
from effects._model.record import MARK, Mark, Record, Records, Unfilled
from effects._model.site import Site
from effects._model.wire import HEADER, SCALARS, header_offset

# NumPy's print options, as far as native code follows them.

_ONLY = {"sign": "-", "floatmode": "maxprec", "nanstr": "nan", "infstr": "inf"}
"""Options that native code follows at NumPy's own value alone."""
_MOST_DIGITS = 100
_MOST = 1 << 40
"""Greater numbers mean the same."""


def print_options(options: Mapping[str, Any]) -> PrintOptions | None:
    """What `numpy.get_printoptions` gives, if native code follows it."""
    if options.get("legacy") or options.get("formatter") or options.get("override_repr"):
        return None
    threshold, edge, width, digits = (options[name] for name in ("threshold", "edgeitems", "linewidth", "precision"))
    if not all(isinstance(number, int) for number in (edge, width, digits)):
        return None
    if edge < 1 or not 0 <= digits <= _MOST_DIGITS:
        return None
    if any(options[name] != value for name, value in _ONLY.items()):
        return None
    return PrintOptions(
        threshold=_MOST if threshold > _MOST else max(math.floor(threshold), -1),
        edgeitems=min(edge, _MOST),
        linewidth=max(-_MOST, min(width, _MOST)),
        precision=digits,
        suppress=bool(options["suppress"]),
    )


def field_of(
    value: Operand, style: Style, spec: str, options: Mapping[str, Any] | None = None, offset: int = 0
) -> Piece | None:
    """How a field shows an operand, of which each lane has a part; None where Python must do it.

    Args:
        value: The operand.
        style: How it is shown.
        spec: The specification of a format.
        options: NumPy's print options, if not those that are in force at the call. A format of JAX's has them, and
            specifications of arrays are an error there.
        offset: Where it begins in a record's payload.
    """
    dtype, shape = value.dtype, value.shape[sum(value.lanes) :]
    if (code := CODES.get(dtype_name(dtype))) is None:
        return None
    style = Style.JSON if shape and style == Style.PLAIN else style
    field = Piece("", code, offset, value.strides, style, shape=shape)
    if style in (Style.JSON, Style.PLAIN):
        return None if spec else field
    if shape or style in (Style.STRING, Style.REPR):  # NumPy shows it
        own = None if options is None else print_options(options)
        if not FOLLOWS_NUMPY or (options is not None and own is None):
            return None
        field = field._replace(options=own, dtype=_dtype_in_repr(dtype, 0 in shape) if style == Style.REPR else "")
    if not spec:
        return field
    fixed = re.fullmatch(_FIXED, spec)
    if style != Style.FORMAT or fixed is None or dtype.kind != "f" or (shape and options is not None):
        return None
    if fixed[2] == "g" and fixed[1] == "0":
        return None
    return field._replace(conversion=fixed[2], precision=int(fixed[1]))


CODES = {name: code for code, name in enumerate(SCALARS)}
"""Of types, by name."""

_FIXED = r"\.(\d{1,2})([efg])"

FOLLOWS_NUMPY = (2, 3) <= tuple(map(int, np.__version__.split(".")[:2])) < (2, 6)
"""Whether native code shows arrays as this NumPy does: tests have compared the two, and options belong to contexts."""


@functools.cache
def _dtype_in_repr(dtype: np.dtype, is_empty: bool) -> str:
    """How `repr` of an array names the type; empty if it does not."""
    with np.printoptions(linewidth=1000):
        _, _, name = repr(np.zeros(0 if is_empty else 1, dtype)).partition(", dtype=")
    return name.removesuffix(")")


# Records whose values are marks. The text that Python makes of one says how native code makes that text of any record
# of the site.


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
        hidden = len(site.operands) - len(site.arrays)
        grid = None
        if site.hidden and (found := site.find_hidden("grid")) is not None:
            operand, at = found
            size, (rank,) = operand.stored.itemsize, operand.shape
            grid = tuple(self._number("int32", at + size * axis) for axis in range(rank))
        operands = zip(site.operands[hidden:], site.offsets[hidden:], strict=True)
        options = site.content.print_options if isinstance(site.content, NativeText) else None
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
        if not isinstance(content := self._site.content, NativeText) or not content.only_fills:
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


def filled_plan(site: Site, literals: Sequence[str]) -> Plan | None:
    """The plan of a format that is nothing but literals with a `{}` between each two, one for each argument. Comes to
    the same as `text_plan`, for what most programs have; None where Python must do it."""
    if site.num_dynamic_sizes or site.per_shard:
        return None
    pieces, literal = [], literals[0]
    offsets = iter(site.offsets[len(site.operands) - len(site.arrays) :])
    for leaf, following in zip(site.leaves, literals[1:], strict=True):
        if isinstance(leaf, Operand):
            if (field := field_of(leaf, Style.FORMAT, "", offset=next(offsets))) is None:
                return None
            pieces.append(field._replace(literal=literal))
            literal = following
        else:
            literal = f"{literal}{leaf.value}{following}"
    return _if_encodable(plan_of(site, [*pieces, Piece(literal)]))


def _if_encodable(plan: Plan) -> Plan | None:
    """The plan; None if it has a lone surrogate: Python's output decides what becomes of it."""
    try:
        "".join(piece.literal for piece in plan.pieces).encode()
    except UnicodeEncodeError:
        return None
    return plan


def text_plan(site: Site, shown: Callable[[Record], str]) -> Plan | None:
    """How native code makes the text that `shown` makes of records of this site; None where Python must do it."""
    try:
        record = MarkedRecord(site)
        return _if_encodable(plan_of(site, record.pieces(shown(record))))
    except Exception:  # a specification of another value's, an attribute: a mark has neither
        return None


@functools.lru_cache(maxsize=256)
def _is_plain(tree: Any) -> bool:
    """Whether arguments are lists, tuples and dictionaries in each other, and no class of a user's is among them."""
    if tree is None or (node := tree.node_data()) is None:
        return True
    return node[0] in (tuple, list, dict, type(None)) and all(map(_is_plain, tree.children()))


# Records that came together as lines that native code makes.

Lines = tuple[bytes, Sequence[int]]
"""Lines one behind the other, and where each ends."""


class NativeRows:
    """Makes lines of records that came together.

    Args:
        plan: Of a site, how lines are made of its records; None if Python must make them, as is what it raises.
    """

    def __init__(self, plan: Callable[[Site], Plan | None]):
        self._make = plan
        # By site, or `_OF_PYTHON`.
        self._plans: weakref.WeakKeyDictionary[Site, Any] = weakref.WeakKeyDictionary()

    def of(self, records: Iterable[Record]) -> Lines | None:
        """The lines of these records; None where Python must make them."""
        if not isinstance(records, Records):
            return None
        plans = {}
        for site in records.sites():
            plan = self._plan(site)
            if plan is _OF_PYTHON:
                return None
            plans[site.id] = plan
        if (options := print_options(np.get_printoptions())) is None:
            return None
        return records.rows(plans, native.number_of_print_options(options))

    def split(self, records: Records) -> Iterator[tuple[int, Records]]:
        """Records in order, cut where native code makes the lines of the one and Python those of the next; and how many
        they are, lanes counted as one."""
        return records.runs(lambda site: self._plan(site) is _OF_PYTHON)

    def _plan(self, site: Site) -> Any:
        if site not in self._plans:
            self._plans[site] = self._new_plan(site)
        return self._plans[site]

    def _new_plan(self, site: Site) -> Any:
        try:
            plan = self._make(site)
            return _OF_PYTHON if plan is None else native.Plan(plan)
        except Exception:  # whatever a mark cannot do
            return _OF_PYTHON


_OF_PYTHON = object()


def plan_of_line(site: Site) -> Plan | None:
    """How native code makes the lines of a site's records (`Content.line`); None where Python must do it."""
    return site.content.native_plan(site) if isinstance(site.content, NativeText) else None


def joined(lines: Sequence[bytes]) -> Lines:
    """Lines that Python has made."""
    ends, end = [], 0
    for line in lines:
        ends.append(end := end + len(line))
    return b"".join(lines), ends
