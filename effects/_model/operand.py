"""Arrays that travel in records, and arguments that do not."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Self

import ml_dtypes  # noqa: F401 - NumPy knows the narrow types by name once it is loaded
import numpy as np


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that travels in the record."""

    shape: tuple[int, ...]
    dtype: np.dtype  # as shown
    stored: np.dtype  # as it travels: narrow integers take a byte
    lanes: tuple[bool, ...] = ()  # for each `vmap` around the site, whether this operand differs between its lanes

    def zeros(self) -> np.ndarray:
        """What one lane may see of the operand, in next to no memory, to try something with."""
        zero = np.zeros((), self.dtype)
        shape = [n if isinstance(n, int) and n >= 0 else _MANY for n in self.shape[sum(self.lanes) :]]
        return np.broadcast_to(zero, shape) if shape else zero

    @functools.cached_property
    def size(self) -> int:
        """Bytes in the record, without padding."""
        return self.stored.itemsize * math.prod(self.shape)

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """How many bytes lie between two lanes, along each axis of lanes; empty if it is the same in all of them."""
        if not any(self.lanes):
            return ()
        steps = itertools.accumulate(reversed(self.shape[1:]), operator.mul, initial=self.stored.itemsize)
        of_axes = iter(reversed([*steps]))
        return tuple(next(of_axes) if differs else 0 for differs in self.lanes)

    def describe(self) -> str:
        """All of it as text: `float32[2,3]`, `int4[2]/int8`, `float32[9,2]@10` (lanes of the outer of two `vmap`s)."""
        stored = "" if self.stored == self.dtype else f"/{dtype_name(self.stored)}"
        lanes = "@" + "".join("01"[differs] for differs in self.lanes) if self.lanes else ""
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]{stored}{lanes}"

    def of_lane(self, value: np.ndarray, lane: tuple[int, ...]) -> np.ndarray:
        """What one lane sees of the operand."""
        if not all(self.lanes):
            lane = tuple(i for i, differs in zip(lane, self.lanes, strict=True) if differs)
        return value[(*lane, ...)]


@dataclasses.dataclass(frozen=True)
class Static:
    """An argument that is known while tracing and travels in the description."""

    value: Any

    @property
    def is_object(self) -> bool:
        """Whether it is of a type that descriptions do not have: only its text travels."""
        return not isinstance(self.value, _PLAIN)

    def as_text(self) -> Static:
        """The same of an object's text."""
        return Static(Text(self.value)) if self.is_object else self


class Text(str):
    """The text of an object, which has that of its `repr` too: containers show what is in them by it."""

    def __new__(cls, thing: object, repr_text: str | None = None) -> Self:
        text = super().__new__(cls, thing if isinstance(thing, str) else _text(str, thing))
        text._repr = _text(repr, thing) if repr_text is None else repr_text
        return text

    _repr: str

    def __repr__(self) -> str:
        return self._repr


def _text(of: Callable[[object], str], thing: object) -> str:
    try:
        return of(thing)
    except Exception:  # a format that shows it says so
        return f"<{type(thing).__qualname__}>"


_PLAIN = (str, bytes, int, float, complex, np.generic)

_OPERAND = r"(\w+)\[([-,\d]*)\](?:/(\w+))?(?:@([01]+))?"


def read_operand(description: str) -> Operand:
    """The operand that describes itself so."""
    match = re.fullmatch(_OPERAND, description)
    assert match is not None, description
    dtype, shape, stored, lanes = match.groups()
    return Operand(
        tuple(map(int, shape.split(","))) if shape else (),
        np.dtype(dtype),
        np.dtype(stored or dtype),
        tuple(lane == "1" for lane in lanes or ""),
    )


_MANY = 1 << 10
"""What stands for a size that is not known yet when a format is tried."""


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """The type's name, which NumPy makes anew at every asking."""
    return dtype.name


# Less than a byte: each device packs them in its own format.
_STORED = {
    **dict.fromkeys(("int1", "int2", "int4"), np.dtype(np.int8)),
    **dict.fromkeys(("uint1", "uint2", "uint4"), np.dtype(np.uint8)),
    "float4_e2m1fn": np.dtype(np.float32),
}


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which values of this one travel between devices and host."""
    return _STORED.get(dtype_name(dtype), dtype)
