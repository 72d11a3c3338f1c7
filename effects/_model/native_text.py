"""What native code makes text of without Python, and how: fields that it shows byte for byte as Python and NumPy do."""

import enum
import functools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from effects._model.json_value import encode, plain
from effects._model.operand import Operand, dtype_name
from effects._model.print_options import PrintOptions, print_options
from effects._model.python_value import is_number, python_value
from effects._wire import SCALARS


class Style(enum.IntEnum):
    """How a field shows its operand."""

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
    END_CELL = 3  # a cell of CSV
    END_LINE = 4  # a line, in which other lines go on


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
    texts: tuple[str, ...] = ()  # of what takes a byte and NumPy does not know: what each of its values is
    dtype: str = ""  # how `repr` names the type, unless it does not
    options: PrintOptions | None = None  # None: those that are in force at the call
    wrap: int = Wrap.NONE


class Plan(NamedTuple):
    """How native code makes text of the records of a site."""

    pieces: list[Piece]
    lanes: tuple[int, ...] = ()  # how many there are along each axis; each lane is a text of its own
    mask: Piece | None = None  # says which lanes have the effect; None: all


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
    style = Style.JSON if shape and style == Style.PLAIN else style
    texts: tuple[str, ...] = ()
    code = CODES.get(dtype_name(dtype))
    if code is None and value.stored.itemsize == 1:
        code, texts = CODES["byte"], _texts_of_bytes(dtype, value.stored, style, bool(shape) or style == Style.REPR)
    if code is None:
        return None
    field = Piece("", code, offset, value.strides, style, shape=shape, texts=texts)
    if style in (Style.JSON, Style.PLAIN):
        return field if not spec and is_number(dtype) else None
    if shape or style in (Style.STRING, Style.REPR):  # NumPy shows it
        own = None if options is None else print_options(options)
        if not FOLLOWS_NUMPY or (options is not None and own is None):
            return None
        field = field._replace(options=own, dtype=_dtype_in_repr(dtype, 0 in shape) if style == Style.REPR else "")
    if not spec:
        return field
    fixed = re.fullmatch(_FIXED, spec)
    # NumPy takes one of the types that it does not know for a float: `float8_e5m2`.
    if style != Style.FORMAT or fixed is None or dtype.kind != "f" or texts or (shape and options is not None):
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


@functools.cache
def _texts_of_bytes(dtype: np.dtype, stored: np.dtype, style: Style, in_arrays: bool) -> tuple[str, ...]:
    """What each byte of a type is as text."""
    with np.errstate(all="ignore"):
        bytes_ = np.arange(256, dtype=np.uint8).view(stored)
        values = bytes_.view(dtype) if stored == dtype else bytes_.astype(dtype)
        if style == Style.JSON:
            return tuple(encode(plain(values[i])) for i in range(256))
        if style == Style.PLAIN:
            return tuple(str(python_value(values[i])) for i in range(256))
        if in_arrays:
            return tuple(str(values[i : i + 1])[1:-1] for i in range(256))
        show = str if style == Style.STRING else format
        return tuple(show(values[i, ...]) for i in range(256))
