"""Differences of values: of one type or of two, exact or within a tolerance."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np


class Tolerance(NamedTuple):
    """Numbers count as equal if they are at most `atol + rtol * larger` apart."""

    rtol: float = 0.0  # of the larger one
    atol: float = 0.0


EXACT = Tolerance()


def differ(a: np.ndarray, b: np.ndarray, tolerance: Tolerance = EXACT) -> np.ndarray:
    """Marks the elements that differ. NaN equals NaN, and 0.0 equals -0.0."""
    if not (_is_number(a) and _is_number(b)):
        a, b = (x if x.dtype.kind in "US" else x.astype(object) for x in (a, b))
        return np.asarray(a != b, bool)
    wide_a, wide_b = _widened(a, b)
    different = np.asarray(wide_a != wide_b)
    if not different.any():
        return different
    if "f" in (kinds := wide_a.dtype.kind + wide_b.dtype.kind) or "c" in kinds:
        different &= ~(np.isnan(wide_a) & np.isnan(wide_b))
    if any(tolerance):
        at = np.nonzero(different)  # mostly few
        wide_a, wide_b = wide_a[at], wide_b[at]
        with np.errstate(all="ignore"):
            largest = np.maximum(np.abs(wide_a), np.abs(wide_b)).astype(float)
            near = distance(wide_a, wide_b) <= tolerance.atol + tolerance.rtol * largest
        different[at] = ~(near & np.isfinite(wide_a) & np.isfinite(wide_b))
    return different


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The absolute difference of elements; infinite if they differ and no number says by how much."""
    if not (_is_number(a) and _is_number(b)):
        return np.where(differ(a, b), np.inf, 0.0)
    wide = _wide(a, b)
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(wide) - b.astype(wide))
    return np.where(np.isnan(apart), np.where(differ(a, b), np.inf, 0.0), apart)


def _is_number(x: np.ndarray) -> bool:
    return x.dtype.kind == "b" or bool(jax.dtypes.issubdtype(x.dtype, np.number))


def _wide(a: np.ndarray, b: np.ndarray) -> type:
    return np.complex128 if "c" in a.dtype.kind + b.dtype.kind else np.float64


def _widened(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Converts both to types that NumPy compares exactly."""
    kinds = {a.dtype.kind, b.dtype.kind}
    if kinds <= {*"biu"} or (a.dtype == b.dtype and kinds <= {*"fc"}):
        return a, b
    wide = _wide(a, b)
    return a.astype(wide), b.astype(wide)
