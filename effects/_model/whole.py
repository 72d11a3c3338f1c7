"""Arrays as a whole, in a few words: `{x:stats}` and `{x:hist}` in a format, and curves of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

_BLOCKS = "▁▂▃▄▅▆▇█"
_BINS = 16


def curve(values: Iterable[float]) -> str:
    """Draws each value as a block whose height runs from the least to the greatest value; `!` is a nonfinite one."""
    numbers = np.asarray([*values], np.float64)
    finite = np.isfinite(numbers)
    least = numbers[finite].min(initial=np.inf)
    span = numbers[finite].max(initial=-np.inf) - least
    heights = np.round(np.where(finite, numbers - least, 0) / (span if span > 0 else 1) * (len(_BLOCKS) - 1))
    return "".join(_BLOCKS[int(height)] if known else "!" for height, known in zip(heights, finite, strict=True))


def _numbers(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The elements (of a complex array, the magnitudes), and the finite ones among them."""
    numbers = (np.abs(x) if x.dtype.kind == "c" else x).astype(np.float64).ravel()
    return numbers, numbers[np.isfinite(numbers)]


def _stats(x: np.ndarray) -> str:
    numbers, finite = _numbers(x)
    if not len(finite):
        return f"none of {len(numbers)} is finite" if len(numbers) else "no elements"
    low, high, mean, norm = finite.min(), finite.max(), finite.mean(), np.linalg.norm(finite)
    zeros, nonfinite = (numbers == 0).mean(), 1 - len(finite) / len(numbers)
    return f"min={low:.4g} max={high:.4g} mean={mean:.4g} norm={norm:.4g} zeros={zeros:.1%} nonfinite={nonfinite:.1%}"


def _histogram(x: np.ndarray) -> str:
    numbers, finite = _numbers(x)
    if not len(finite):
        return _stats(x)
    counts, edges = np.histogram(finite, _BINS)
    others = f" and {len(numbers) - len(finite)} not finite" if len(finite) < len(numbers) else ""
    return f"{edges[0]:.4g} {curve([0, *counts])[1:]} {edges[-1]:.4g}{others}"


SHOWN: Mapping[str, Callable[[np.ndarray], str]] = {"stats": _stats, "hist": _histogram}
"""By specification, the function that makes an array's text."""
