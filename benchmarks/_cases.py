"""What a benchmark is, what it finds, and the table of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from benchmarks._measure import Figure


@dataclasses.dataclass(frozen=True)
class Target:
    """What a ratio should be: at most, or at least, so much."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        """Whether a ratio is as it should be."""
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One figure against another; without a target it is for information."""

    label: str
    value: float
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.met(self.value)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a case found: ratios, and the figures behind them, each `per` what it says."""

    per: str
    ratios: list[Ratio]
    figures: dict[str, Figure]


@dataclasses.dataclass(frozen=True)
class Case:
    """One benchmark."""

    name: str
    what: str
    run: Callable[[int], Result]  # takes the number of repeats
    slow: bool  # runs only when asked for


CASES: dict[str, Case] = {}
"""By name, in the order in which they run."""


def case(name: str, what: str, *, slow: bool = False) -> Callable[[Callable[[int], Result]], Callable[[int], Result]]:
    """Adds the decorated function, which takes the number of repeats, to the table of cases.

    Args:
        name: What `--only` calls it.
        what: What is measured, in a few words.
        slow: Whether it takes minutes, and so runs only with `--only` or `--all`.

    Example:
        >>> @case("nothing", "a loop that does nothing")
        ... def nothing(repeats):
        ...     figures = interleave({"nothing": lambda: timed(lambda: None, 1000)}, repeats)
        ...     return Result("call", [], figures)
    """

    def add(run: Callable[[int], Result]) -> Callable[[int], Result]:
        if name in CASES:
            raise ValueError(f"There are two benchmarks called {name!r}. Names are unique. Rename one of them.")
        CASES[name] = Case(name, what, run, slow)
        return run

    return add
