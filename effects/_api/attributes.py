"""Attributes of custom calls: what handlers get beside operands, and is part of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from effects import _errors as errors
from effects._model.site import Where

MSG_ATTRIBUTE_NAME = (
    "`fx.custom_call` at {where} was given an attribute with the name {name}. A handler finds attributes by name, an "
    "identifier in ASCII letters. Rename it."
)
MSG_ATTRIBUTE = (
    "`fx.custom_call` at {where} was given {given} as the attribute `{name}`. An attribute is known while tracing: a "
    "number, a string, bytes, an array (of integers, float32 or float64), or a dictionary of these. Pass what is "
    "computed as an operand."
)


class Attributes:
    """What a handler gets beside operands. Equal ones have equal values of equal types."""

    def __init__(self, values: Mapping[str, Any], where: Where):
        self.values = {name: _take_attribute(value, name, where) for name, value in values.items()}
        self._key = _key_of(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.values)


def _take_attribute(value: Any, name: str, where: Where) -> Any:
    if not (isinstance(name, str) and name.isascii() and name.isidentifier()):
        raise ValueError(MSG_ATTRIBUTE_NAME.format(where=where, name=errors.shown(name)))
    if isinstance(value, Mapping):
        return {inner: _take_attribute(each, inner, where) for inner, each in value.items()}
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    if fits and isinstance(value, (str, bytes, bool, int, float)):
        return value
    try:
        if not fits:
            raise TypeError
        array = np.array(value)  # a copy, which does not change
        array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.name not in _ATTRIBUTE_TYPES and not (array.ndim == 0 and array.dtype == bool):
            raise TypeError
    except Exception:
        given = errors.shown(value)
        raise TypeError(MSG_ATTRIBUTE.format(where=where, name=name, given=given)) from None
    return array if array.ndim else array[()]


_ATTRIBUTE_TYPES = frozenset(
    [*(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "float32", "float64"]
)
"""What XLA hands to handlers."""


def _key_of(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _key_of(each)) for name, each in value.items()))
    if isinstance(value, (np.ndarray, np.generic)):
        return type(value).__name__, value.dtype.name, value.shape, value.tobytes()
    return type(value).__name__, repr(value) if isinstance(value, float) else value
