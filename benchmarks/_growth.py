"""What something costs at each of several sizes, and whether it grows faster than the size does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks._cases import Curve, Result
from benchmarks._measure import Figure, interleave
from benchmarks._ratios import Ratio, cost, gain

EXPONENT = 1.1
"""Cost may grow with this power of the size: linearly, and a tenth for what is measured."""

Points = Mapping[tuple[str, int], Callable[[], float]]
"""By contender and size, functions that measure themselves once and return seconds."""


def measure_growth(points: Points, repeats: int) -> dict[tuple[str, int], Figure]:
    """All contenders at all sizes, interleaved."""
    names = {f"{name} {size}": (name, size) for name, size in points}
    figures = interleave({name: points[key] for name, key in names.items()}, repeats)
    return {names[name]: figure for name, figure in figures.items()}


def scaling(
    figures: Mapping[tuple[str, int], Figure],
    *,
    of: str,
    per: str,
    ours: str,
    jaxs: str | None = None,
    plain: str | None = None,
    same: Mapping[str, Figure] | None = None,
    whole: bool = False,
    in_bytes: bool = False,
    beside_plain: bool = False,
) -> Result:
    """A result with a ratio for each size, and one for the growth.

    Args:
        figures: By contender and size.
        of: What has the size, such as "prints in a program".
        per: Of what a figure is, such as "print".
        ours: The contender that counts.
        jaxs: The one that it is compared with as JAX's own.
        plain: The one without effects.
        same: By contender, the figures of those for which the size means nothing, so that they have one.
        whole: Whether a figure is that of all that has the size, and may so grow as the size does; else it is that of a
            part, and should not grow.
        in_bytes: Whether sizes are bytes.
        beside_plain: Whether `plain` may slow down with the size too, so that ours is to grow as that one does.
    """
    sizes = sorted({size for _, size in figures})
    shown = {f"{name}, {show_size(size, in_bytes)}": figure for (name, size), figure in figures.items()} | dict(
        same or {}
    )
    figures = dict(figures) | {(name, size): figure for name, figure in (same or {}).items() for size in sizes}
    mine = [size for size in sizes if (ours, size) in figures]
    ratios = [_growth(figures, mine, of, ours, plain if beside_plain else None, whole)]
    for size in sizes:
        mine, label = figures[ours, size], show_size(size, in_bytes)
        if plain and (plain, size) in figures:
            ratios.append(cost(f"{label}: {ours} / {plain}", mine, figures[plain, size]))
        if jaxs and (jaxs, size) in figures:
            ratios.append(gain(f"{label}: {jaxs} / {ours}", figures[jaxs, size], mine))
    names = list(dict.fromkeys(name for name, _ in figures))
    lines = {name: [figures.get((name, size)) for size in sizes] for name in names}
    return Result(per, ratios, shown, curve=Curve(of, per, tuple(sizes), lines, in_bytes))


def _growth(
    figures: Mapping[tuple[str, int], Figure], sizes: Sequence[int], of: str, ours: str, plain: str | None, whole: bool
) -> Ratio:
    """How many times as much it costs at ten times the size, by the line that fits the upper half of the sizes best: at
    small ones what is the same for all sizes would hide how the rest grows."""

    def rounds(size: int) -> Sequence[float]:
        costs = figures[ours, size].rounds
        if plain is None:
            return costs
        return [cost / beside for cost, beside in zip(costs, figures[plain, size].rounds, strict=True)]

    upper = sizes[len(sizes) // 2 - (len(sizes) > 2) :]
    logs = [math.log10(size) for size in upper]
    by_round = zip(*map(rounds, upper), strict=True)
    slopes = [statistics.linear_regression(logs, [math.log10(x) for x in costs]).slope for costs in by_round]
    bound = round(10 ** (EXPONENT - (not whole)), 2)
    shown = ours if plain is None else f"{ours} / {plain}"
    return Ratio(f"{shown}, ten times the {of}", tuple(10**slope for slope in slopes), "less", bound)


def show_size(size: int, in_bytes: bool) -> str:
    """A size as a reader knows it.

    Example:
        >>> show_size(4 << 20, in_bytes=True)
        '4 MiB'
    """
    if in_bytes:
        for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if size >> shift:
                return f"{size >> shift} {unit}"
    return f"{size} B" if in_bytes else f"{size:,}"
