"""Arrays compared bit by bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Difference:
    """An array that differs between two programs.

    Attributes:
        path: Which part of the result it is, as in `result['loss'][0]`.
        count: How many of its elements differ. NaNs that differ in their payload or sign alone are not counted.
        size: How many elements it has.
        max_ulp: The greatest difference in units in the last place: how many numbers of the type lie between the two,
            and one. None if the array is not of floats.
        max_absolute: The greatest difference of two numbers.
        nans: How many elements are NaN in one program only. Neither maximum includes them.
        nan_payloads: How many elements are NaN in both, with other bits.
    """

    path: str
    count: int
    size: int
    max_ulp: int | None
    max_absolute: float
    nans: int
    nan_payloads: int

    def __str__(self) -> str:
        said = []
        if self.count:
            most = f"at most {self.max_absolute:.3g}"
            if self.max_ulp is not None:
                most = f"at most {self.max_ulp} ulp, {self.max_absolute:.3g}"
            said.append(f"{self.count} of {self.size} elements, {most}")
        said += [f"{self.nans} of these NaN in one program only"] * bool(self.nans)
        said += [f"the bits of {self.nan_payloads} NaNs"] * bool(self.nan_payloads)
        return f"{self.path}: {', '.join(said)}"


def difference(path: str, first: Any, second: Any) -> Difference | None:
    """How two arrays of the same shape and type differ; None if all of their bits are the same."""
    if jax.dtypes.issubdtype(first.dtype, jax.dtypes.prng_key):
        first, second = jax.random.key_data(first), jax.random.key_data(second)
    first, second = np.asarray(first), np.asarray(second)
    differ = (_bytes(first) != _bytes(second)).any(axis=1)
    if not differ.any():
        return None
    a, b = first.reshape(-1)[differ], second.reshape(-1)[differ]
    if not _is_inexact(a.dtype):
        return Difference(path, len(a), first.size, None, _greatest(a, b), 0, 0)
    are_nan, is_nan = np.isnan(a) & np.isnan(b), np.isnan(a) | np.isnan(b)
    a, b, nans = a[~is_nan], b[~is_nan], int((is_nan & ~are_nan).sum())
    ulp = int(np.abs(_ordered(a) - _ordered(b)).max(initial=0))
    return Difference(path, len(a) + nans, first.size, ulp, _greatest(a, b), nans, int(are_nan.sum()))


def _bytes(x: np.ndarray) -> np.ndarray:
    """The bytes of each element."""
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.dtype.itemsize)


def _is_inexact(dtype: np.dtype) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, np.inexact))


def _greatest(a: np.ndarray, b: np.ndarray) -> float:
    """The greatest absolute difference."""
    if not _is_inexact(a.dtype):
        return float(np.abs(_exact(a) - _exact(b)).max(initial=0))
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return float(np.abs(a.astype(wide) - b.astype(wide)).max(initial=0.0))


def _ordered(x: np.ndarray) -> np.ndarray:
    """Where each number stands among all numbers of the type: neighbours differ by one, and the two zeros are the same.
    Of a complex number, the place of each part."""
    if x.dtype.kind == "c":
        x = x.view(np.dtype(f"f{x.dtype.itemsize // 2}"))
    bits = x.view(f"u{x.dtype.itemsize}")
    if x.dtype.itemsize == 1:  # among which there are types without a sign, and with fewer bits
        numbers = np.arange(256, dtype=np.uint8).view(x.dtype).astype(np.float64)
        places = np.unique(numbers[~np.isnan(numbers)])
        return np.searchsorted(places, x.astype(np.float64))
    sign = np.array(1 << (8 * x.dtype.itemsize - 1), bits.dtype)
    magnitude = _exact(bits & ~sign)
    return np.where(bits & sign, -magnitude, magnitude)


def _exact(x: np.ndarray) -> np.ndarray:
    """Integers whose differences do not overflow."""
    return x.astype(object if x.dtype.itemsize == 8 else np.int64)
