"""Text that native code makes without Python: fields that it shows byte for byte as Python and NumPy do."""

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
"""Options that native code supports only at NumPy's default value."""
_MOST_DIGITS = 100
_MOST = 1 << 40
"""Greater numbers mean the same."""


def print_options(options: Mapping[str, Any]) -> PrintOptions | None:
    """Converts the options of `numpy.get_printoptions`; None if native code does not follow them."""
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
    """The field that shows one lane's part of an operand; None if Python must show it.

    Args:
        value: The operand.
        style: The style in which it is shown.
        spec: The specification of a format.
        options: NumPy's print options, if not those in force at the call. A format of JAX's has its own, and there a
            specification of an array is an error.
        offset: The operand's first byte in a record's payload.
    """
    dtype, shape = value.dtype, value.shape[sum(value.lanes) :]
    if (code := CODES.get(dtype_name(dtype))) is None:
        return None
    field = Piece("", code, offset, value.strides, style, shape=shape)
    if style == Style.JSON:
        return None if spec else field
    if shape or style in (Style.STRING, Style.REPR):  # NumPy shows it
        numpy_options = None if options is None else print_options(options)
        if not FOLLOWS_NUMPY or (options is not None and numpy_options is None):
            return None
        field = field._replace(
            options=numpy_options, dtype=_dtype_in_repr(dtype, 0 in shape) if style == Style.REPR else ""
        )
    if not spec:
        return field
    fixed = re.fullmatch(_FIXED, spec)
    if style != Style.FORMAT or fixed is None or dtype.kind != "f" or (shape and options is not None):
        return None
    if fixed[2] == "g" and fixed[1] == "0":
        return None
    return field._replace(conversion=fixed[2], precision=int(fixed[1]))


CODES = {name: code for code, name in enumerate(SCALARS)}
"""The codes of types, by name."""

_FIXED = r"\.(\d{1,2})([efg])"

FOLLOWS_NUMPY = (2, 3) <= tuple(map(int, np.__version__.split(".")[:2])) < (2, 6)
"""True if native code shows arrays as this NumPy does: tests compare the two, and options must belong to contexts."""


@functools.cache
def _dtype_in_repr(dtype: np.dtype, is_empty: bool) -> str:
    """The type's name in the `repr` of an array; empty if the `repr` leaves it out."""
    with np.printoptions(linewidth=1000):
        _, _, name = repr(np.zeros(0 if is_empty else 1, dtype)).partition(", dtype=")
    return name.removesuffix(")")


# Records whose values are marks. Python formats such a record once; from the text follows the plan by which native code
# formats every record of the site.


class MarkedRecord(Record):
    """A record of a site in which each value is a mark.

    Args:
        site: The site, which must not differ between its records.
        with_header: True if the fields of the header, ahead of the payload, are marks too.

    Raises:
        Unfilled: if only Python can make the text of this site's records.
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
        args, kwargs = self._site.arguments(self._payload)  # the shape of one lane
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
        """True if a text is the mark of a value itself."""
        return (found := re.fullmatch(MARK, text)) is not None and found[1] == "v"

    def pieces(self, text: str, style: Style | None = None) -> Iterator[Piece]:
        """Splits a text made of this record at its marks: each piece is a literal with the field behind it.

        `style`: the style of the marks of values themselves.
        """
        literal = 0
        for found in re.finditer(MARK, text):
            way, number, spec = found.groups()
            chosen = {"f": Style.FORMAT, "s": Style.STRING, "r": Style.REPR, "v": style}[way]
            field = None if chosen is None else self._marks[int(number)].field_of(chosen, bytes.fromhex(spec).decode())
            if field is None:
                raise Unfilled
            yield field._replace(literal=text[literal : found.start()])
            literal = found.end()
        yield Piece(text[literal:])

    def _mark(self, field_of: Callable[[Style, str], Piece | None]) -> Any:
        self._marks.append(Mark(len(self._marks), field_of))
        return self._marks[-1]

    def _number(self, type: str, offset: int) -> Any:
        """A mark for a number of the header, the grid or the lane."""

        def field(style: Style, spec: str) -> Piece | None:
            return None if spec else Piece("", CODES[type], offset, style=Style.JSON)

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
    """The plan of a format that is only literals with `{}` between them, one for each argument; None if Python must
    make the text. A fast path for the most common formats, with the result of `text_plan`."""
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
    """The plan; None if it has a lone surrogate, since the error handler of Python's output decides how that is
    written."""
    try:
        "".join(piece.literal for piece in plan.pieces).encode()
    except UnicodeEncodeError:
        return None
    return plan


def text_plan(site: Site, shown: Callable[[Record], str]) -> Plan | None:
    """The plan for the text that `shown` makes of records of this site; None if Python must make it."""
    try:
        record = MarkedRecord(site)
        return _if_encodable(plan_of(site, record.pieces(shown(record))))
    except Exception:  # an attribute or a specification that marks do not support
        return None


@functools.lru_cache(maxsize=256)
def _is_plain(tree: Any) -> bool:
    """True if arguments consist of lists, tuples and dictionaries alone, without a user class."""
    if tree is None or (node := tree.node_data()) is None:
        return True
    return node[0] in (tuple, list, dict, type(None)) and all(map(_is_plain, tree.children()))


# The lines of a batch of records, made by native code.

Lines = tuple[bytes, Sequence[int]]
"""Concatenated lines, and the end of each."""


class NativeRows:
    """Makes the lines of a batch of records in native code.

    Args:
        plan: Returns the plan of a site's lines. If it returns None or raises, Python must make them.
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
        """Splits records, in order, into runs whose lines either native code or Python makes, and yields the size of
        each run (lanes count as one) and the run."""
        return records.runs(lambda site: self._plan(site) is _OF_PYTHON)

    def _plan(self, site: Site) -> Any:
        if site not in self._plans:
            self._plans[site] = self._new_plan(site)
        return self._plans[site]

    def _new_plan(self, site: Site) -> Any:
        try:
            plan = self._make(site)
            return _OF_PYTHON if plan is None else native.Plan(plan)
        except Exception:  # an operation that marks do not support
            return _OF_PYTHON


_OF_PYTHON = object()


def plan_of_line(site: Site) -> Plan | None:
    """The plan for the lines of a site's records (`Content.line`); None if Python must make them."""
    return site.content.native_plan(site) if isinstance(site.content, NativeText) else None


def joined(lines: Sequence[bytes]) -> Lines:
    """Concatenates lines that Python has made."""
    ends, end = [], 0
    for line in lines:
        ends.append(end := end + len(line))
    return b"".join(lines), ends
