"""Arrays as a whole, in a few words: `{x:stats}` in a format."""

from __future__ import annotations

import numpy as np


def stats(x: np.ndarray) -> str:
    """The least, greatest and mean element and the norm of the finite elements; of complex ones the magnitudes."""
    numbers = (np.abs(x) if x.dtype.kind == "c" else x).astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return f"none of {len(numbers)} is finite" if len(numbers) else "no elements"
    low, high, mean, norm = finite.min(), finite.max(), finite.mean(), np.linalg.norm(finite)
    zeros, nonfinite = (numbers == 0).mean(), 1 - len(finite) / len(numbers)
    return f"min={low:.4g} max={high:.4g} mean={mean:.4g} norm={norm:.4g} zeros={zeros:.1%} nonfinite={nonfinite:.1%}"
