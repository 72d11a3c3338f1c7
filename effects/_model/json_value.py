"""Values of records as JSON has them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from effects._model.mark import Mark
from effects._model.python_value import is_number, python_value, shortest

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
