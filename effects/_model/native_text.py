"""What native code makes text of without Python, and how: formats whose fields it shows byte for byte as Python and
NumPy do."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from effects._model.operand import Operand, Static, dtype_name
from effects._model.print_options import PrintOptions, print_options
from effects._model.site import Site
from effects._wire import SCALARS


class Piece(NamedTuple):
    """A part of a format: what stands ahead of a field, and what the field shows."""

    literal: str
    type: int | None = None  # the code of its elements' type; None: there is no field
    offset: int = 0  # where the operand begins in a record
    conversion: str = ""  # "e", "f" or "g": the specification's, of each element
    precision: int = 0
    shape: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()  # of what takes a byte and NumPy does not know: what each of its values is
    options: PrintOptions | None = None  # None: those that are in force at the call


def native_plan(
    fmt: str,
    site: Site,
    end: str,
    of_record: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
) -> list[Piece] | None:
    """How native code fills the format of this site; None where Python must do it.

    Args:
        fmt: The format.
        site: Whose records are shown.
        end: What comes behind each text.
        of_record: The fields that the record fills.
        options: NumPy's print options, if not those that are in force at the call. A format of JAX's has them, and
            specifications of arrays are an error there.
    """
    if site.lanes or site.num_dynamic_sizes or site.per_shard:
        return None
    index = {id(leaf): at for leaf, at in zip(site.operands, site.offsets, strict=True)}
    args, kwargs = site.whole_arguments
    pieces: list[Piece] = []
    literal, automatic = "", 0
    for text, name, spec, conversion in string.Formatter().parse(fmt):
        literal += text
        if name is None:
            continue
        if name == "":
            name, automatic = str(automatic), automatic + 1
        if name in of_record:
            if name != "grid" or site.grid is None or spec or conversion not in (None, "s"):
                return None
            first, (rank,) = index[id(site.grid)], site.grid.shape
            for axis in range(rank):
                at = first + axis * site.grid.stored.itemsize
                pieces.append(Piece(literal + (", " if axis else "("), _CODES[dtype_name(site.grid.dtype)], at))
                literal = ""
            literal += ",)" if rank == 1 else ")" if rank else "()"
            continue
        value = args[int(name)] if name.isdecimal() else kwargs.get(name)
        if isinstance(value, Static):
            value = value.value
        if isinstance(value, (str, int, float)) and not isinstance(value, np.generic) and "{" not in (spec or ""):
            field = "{0" + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
            literal += field.format(value)
            continue
        if not isinstance(value, Operand) or conversion not in (None, "s"):
            return None
        field = field_of(value, spec or "", conversion, options)
        if field is None:
            return None
        pieces.append(field._replace(literal=literal, offset=index[id(value)]))
        literal = ""
    pieces.append(Piece(literal + end))
    try:
        "".join(piece.literal for piece in pieces).encode()
    except UnicodeEncodeError:  # a lone surrogate: Python's output decides what becomes of it
        return None
    return pieces


def field_of(value: Operand, spec: str, conversion: str | None, options: Mapping[str, Any] | None) -> Piece | None:
    """How a field shows an operand."""
    dtype, shape = value.dtype, value.shape
    texts: tuple[str, ...] = ()
    code = _CODES.get(dtype_name(dtype))
    if code is None and value.stored.itemsize == 1:
        code, texts = _CODES["byte"], _texts_of_bytes(dtype, value.stored, bool(shape))
    if code is None:
        return None
    own = None if options is None or not shape else print_options(options)
    if shape and not (FOLLOWS_NUMPY and (options is None or own is not None)):
        return None
    field = Piece("", code, shape=shape, texts=texts, options=own)
    if not spec:
        # As a string a number of NumPy's is not what Python's own number would be.
        return field if shape or conversion is None or dtype.kind in "biu" else None
    fixed = _FIXED.fullmatch(spec)
    if conversion is not None or fixed is None or dtype.kind != "f" or (shape and options is not None):
        return None
    if fixed[2] == "g" and fixed[1] == "0":
        return None
    return field._replace(conversion=fixed[2], precision=int(fixed[1]))


_CODES = {name: code for code, name in enumerate(SCALARS)}
_FIXED = re.compile(r"\.(\d{1,2})([efg])")

FOLLOWS_NUMPY = (2, 3) <= tuple(map(int, np.__version__.split(".")[:2])) < (2, 6)
"""Whether native code shows arrays as this NumPy does: tests have compared the two, and options belong to contexts."""


@functools.cache
def _texts_of_bytes(dtype: np.dtype, stored: np.dtype, in_arrays: bool) -> tuple[str, ...]:
    """What NumPy shows for each byte of a type."""
    with np.errstate(all="ignore"):
        bytes_ = np.arange(256, dtype=np.uint8).view(stored)
        values = bytes_.view(dtype) if stored == dtype else bytes_.astype(dtype)
        return tuple(str(values[i : i + 1])[1:-1] if in_arrays else f"{values[i, ...]}" for i in range(256))
