"""What a benchmark is, what it finds, and the table of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from benchmarks._measure import Figure
from benchmarks._ratios import Ratio

Pace = Literal["quick", "usual", "slow"]


@dataclasses.dataclass(frozen=True)
class Curve:
    """What a unit costs each contender, at each size of something."""

    of: str  # what has the size
    unit: str  # of the cost, as the axis of a picture says it
    sizes: tuple[int, ...]
    lines: dict[str, list[Figure | None]]  # by contender, a figure for each size; None where it was not measured
    in_bytes: bool = False  # whether sizes are bytes


@dataclasses.dataclass(frozen=True)
class Result:
    """What a case found: ratios, and the figures behind them, each `per` what it says."""

    per: str
    ratios: list[Ratio]
    figures: dict[str, Figure]
    counts: dict[str, float] = dataclasses.field(default_factory=dict)  # what noise does not change. Less is better
    curve: Curve | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark."""

    name: str
    what: str
    run: Callable[[int], Result]  # takes the number of repeats
    pace: Pace
    on_cpus: bool = False  # whether it needs handlers of CPUs, or as many devices as it likes


CASES: dict[str, Case] = {}
"""By name, in the order in which they run."""


def case(
    name: str, what: str, pace: Pace = "usual", *, on_cpus: bool = False
) -> Callable[[Callable[[int], Result]], Callable[[int], Result]]:
    """Adds the decorated function, which takes the number of repeats, to the table of cases.

    Args:
        name: What `--only` calls it.
        what: What is measured, in a few words.
        pace: `"quick"` if it takes seconds, so that it runs with `--quick` too; `"slow"` if it takes minutes, so that
            it runs only with `--only` or `--all`.
        on_cpus: Whether it can be measured on CPUs alone, and is left out elsewhere.

    Example:
        >>> @case("nothing", "a loop that does nothing")
        ... def nothing(repeats):
        ...     figures = interleave({"nothing": lambda: timed(lambda: None, 1000)}, repeats)
        ...     return Result("call", [], figures)
    """

    def add(run: Callable[[int], Result]) -> Callable[[int], Result]:
        if name in CASES:
            raise ValueError(f"There are two benchmarks called {name!r}. Names are unique. Rename one of them.")
        CASES[name] = Case(name, what, run, pace, on_cpus)
        return run

    return add
