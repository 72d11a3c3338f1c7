"""Marks, which stand for values while a text is made: the text then says where native code puts each value."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from effects._model.text import Piece, Style

_NAME = uuid.uuid4().hex
"""What no text of a user's has in it."""

MARK = rf"{_NAME}([fsrv])(\d+):([0-9a-f]*);"
"""A mark in a text: the way in which it is shown, its number, and the specification of a format."""


class Unfilled(Exception):
    """Python has to make the text, since it does more with a value than to show it."""


class Mark:
    """Stands for a value. As text it says how it is shown; nothing else can be done with it."""

    __slots__ = ("_number", "field_of")

    def __init__(self, number: int, field_of: Callable[[Style, str], Piece | None]):
        self._number = number
        self.field_of = field_of

    def _text(self, way: str, spec: str = "") -> str:
        return f"{_NAME}{way}{self._number}:{spec.encode().hex()};"

    def __format__(self, spec: str) -> str:
        return self._text("f", spec)

    def __str__(self) -> str:
        return self._text("s")

    def __repr__(self) -> str:
        return self._text("r")

    @property
    def as_value(self) -> str:
        """Where the value itself stands, as in JSON."""
        return self._text("v")

    def _refuse(self, *_: Any) -> Never:
        raise Unfilled

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __array__ = __len__ = __iter__ = _refuse
    __hash__ = object.__hash__


def has_marks(text: str) -> bool:
    return _NAME in text


# Values of records as those of Python's own.


def python_value(value: Any) -> Any:
    """A value as Python's numbers, strings, lists and dictionaries.

    Of a class that JAX was told of: a dictionary of its leaves by path, such as `"layer.w"`.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        known = is_number(array.dtype) or array.dtype.kind in "USO"
        return (shortest(array) if known else array.astype(str)).tolist()
    if value is None or isinstance(value, (str, bytes, int, float, complex, Mark)):
        return value
    if isinstance(value, dict):
        return {str(key): python_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [python_value(inner) for inner in value]
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if leaves and leaves[0][1] is value:
        return str(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): python_value(leaf) for path, leaf in leaves}


def shortest(array: np.ndarray) -> np.ndarray:
    """Numbers of a type that NumPy itself has, of which each is written in the fewest digits that its own type reads as
    the same: 0.1 and not 0.10000000149011612."""
    dtype = array.dtype
    if not is_numpys(dtype):
        if jnp.issubdtype(dtype, np.floating):
            return shortest(array.astype(np.float32))
        return array.astype(np.int64)
    if dtype.kind == "c" and dtype.itemsize < 16:
        wide = np.empty(array.shape, np.complex128)
        wide.real, wide.imag = shortest(np.real(array)), shortest(np.imag(array))
        return wide
    if dtype.kind == "f" and dtype.itemsize < 8:
        return np.array(array.astype(str)).astype(np.float64)
    return array


def is_numpys(dtype: np.dtype) -> bool:
    """Whether NumPy itself has a type, and knows what it is; of a library's such as bfloat16 `isbuiltin` is 2."""
    return dtype.kind in "biufcUSO" and dtype.isbuiltin != 2


def is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))


# Values of records as JSON has them.

encode = json.JSONEncoder(allow_nan=False).encode


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(np.asarray(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if value is None or isinstance(value, (str, int, Mark)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    return value.hex() if isinstance(value, bytes) else plain(python_value(value))


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain_array(array: np.ndarray) -> Any:
    if not is_number(array.dtype):
        return plain(python_value(array))
    array = shortest(array)
    if array.dtype.kind == "c":
        return _plain_array(np.stack([np.real(array), np.imag(array)], -1))
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        shown = array.astype(object)
        shown[~finite] = [_NOT_FINITE[str(value)] for value in array[~finite].tolist()]
        return shown.tolist()
    return array.tolist()
