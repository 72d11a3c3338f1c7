"""Plans by which native code makes the text of records: literals, and fields that show operands."""

from __future__ import annotations

import enum
from typing import NamedTuple


class PrintOptions(NamedTuple):
    """Print options that native code follows."""

    threshold: int
    edgeitems: int
    linewidth: int
    precision: int
    suppress: bool


class Style(enum.IntEnum):
    """The style in which a field shows its operand."""

    FORMAT = 0  # as `str.format` does
    STRING = 1  # as `str` does, which differs for NumPy's numbers
    REPR = 2  # as `repr` does
    JSON = 3


class Wrap(enum.IntEnum):
    """The begin of a span, behind a piece's literal, or its end, behind a field; a span is rewritten as a whole."""

    NONE = 0
    BEGIN = 1
    END_STRING = 2  # quotes the span as a string of JSON
    END_LINE = 3  # newlines in the span become spaces


class Piece(NamedTuple):
    """A part of a text: a literal, and the field behind it."""

    literal: str
    type: int | None = None  # the code of its elements' type; None: there is no field
    offset: int = 0  # the operand's first byte in the payload (negative: in the header); of type "lane", the axis
    strides: tuple[int, ...] = ()  # in bytes, along each axis of lanes; empty if the operand is the same in all lanes
    style: int = Style.FORMAT
    conversion: str = ""  # "e", "f" or "g": the specification's, of each element
    precision: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""  # the type's name in `repr`; empty if `repr` leaves it out
    options: PrintOptions | None = None  # None: those that are in force at the call
    wrap: int = Wrap.NONE


class Plan(NamedTuple):
    """The plan by which native code makes the text of a site's records."""

    pieces: list[Piece]
    lanes: tuple[int, ...] = ()  # the number along each axis; there is a text for each lane
    mask: Piece | None = None  # the lanes that have the effect; None: all
