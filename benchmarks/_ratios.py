"""One figure against another, with the spread of its own that interleaved rounds give it."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Literal

from benchmarks._measure import Figure

Better = Literal["less", "more"]

LEAST_ROUNDS = 5
"""A ratio of fewer rounds has no spread, since too few values say nothing of it."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How a figure compares with another, round by round: the two of a round were measured one after the other, so what
    the machine did meanwhile is in both, and goes out of their ratio."""

    label: str
    rounds: tuple[float, ...]
    better: Better | None = None  # which direction is; None where neither figure is ours
    bound: float | None = None  # at most, or at least, so much; without it the ratio is for information

    @property
    def value(self) -> float:
        """What stands for all rounds."""
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Between which two values the middle half of the rounds lies; None of too few."""
        return spread(self.rounds)

    @property
    def met(self) -> bool | None:
        """Whether it is as it should be; None without a bound."""
        if self.bound is None:
            return None
        return self.value >= self.bound if self.better == "more" else self.value <= self.bound

    @property
    def target(self) -> str | None:
        """The bound as text."""
        return None if self.bound is None else f"{'>=' if self.better == 'more' else '<='} {self.bound:g}"


def spread(rounds: tuple[float, ...]) -> tuple[float, float] | None:
    """Between which two values the middle half of the rounds lies; None of too few, or if not all are positive.

    Example:
        >>> spread((1.0, 2.0, 3.0, 4.0, 9.0))
        (2.0, 4.0)
    """
    if len(rounds) < LEAST_ROUNDS or min(rounds) <= 0:
        return None
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return low, high


def cost(label: str, ours: Figure, other: Figure, at_most: float | None = None) -> Ratio:
    """How many times as much ours takes as the other. Less is better.

    Example:
        >>> cost("fx.print / plain", Figure((3.0, 6.0, 4.0)), Figure((2.0, 3.0, 2.0)), at_most=1.8).met
        False
    """
    return Ratio(label, _by_rounds(ours, other), "less", at_most)


def gain(label: str, other: Figure, ours: Figure, at_least: float | None = None) -> Ratio:
    """How many times as much the other takes as ours. More is better.

    Example:
        >>> gain("jax.debug.print / fx.print", Figure((8.0, 8.0, 8.0)), Figure((2.0, 2.0, 2.0)), at_least=4).met
        True
    """
    return Ratio(label, _by_rounds(other, ours), "more", at_least)


def aside(label: str, over: Figure, under: Figure) -> Ratio:
    """For information: neither figure is ours, or no direction is better."""
    return Ratio(label, _by_rounds(over, under))


def _by_rounds(over: Figure, under: Figure) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(over.rounds, under.rounds, strict=True))
