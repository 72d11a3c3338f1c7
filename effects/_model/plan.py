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
    STRING = 1  # as `str` does, to which NumPy's numbers are not Python's
    REPR = 2  # as `repr` does
    JSON = 3
    PLAIN = 4  # as `str` shows the Python number of as many digits as its type needs; arrays are JSON


class Wrap(enum.IntEnum):
    """What begins behind a piece's literal, or ends behind its field, and is written otherwise as a whole."""

    NONE = 0
    BEGIN = 1
    END_STRING = 2  # a string of JSON
    END_LINE = 3  # a line, in which other lines go on


class Piece(NamedTuple):
    """A part of a text: what stands ahead of a field, and what the field shows."""

    literal: str
    type: int | None = None  # the code of its elements' type; None: there is no field
    offset: int = 0  # where the operand begins in a record's payload; the header lies ahead of that; of "lane" the axis
    strides: tuple[int, ...] = ()  # in bytes, along each axis of lanes; empty if it is the same in all of them
    style: int = Style.FORMAT
    conversion: str = ""  # "e", "f" or "g": the specification's, of each element
    precision: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""  # how `repr` names the type, unless it does not
    options: PrintOptions | None = None  # None: those that are in force at the call
    wrap: int = Wrap.NONE


class Plan(NamedTuple):
    """The plan by which native code makes the text of a site's records."""

    pieces: list[Piece]
    lanes: tuple[int, ...] = ()  # how many there are along each axis; each lane is a text of its own
    mask: Piece | None = None  # says which lanes have the effect; None: all
