"""Measures contenders in interleaved rounds, so that other load on the machine slows all of them alike."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured quantity, round by round. In seconds, or else in bytes."""

    rounds: tuple[float, ...]
    unit: str = "s"

    @property
    def median(self) -> float:
        """What stands for all rounds."""
        return statistics.median(self.rounds)

    @property
    def low(self) -> float:
        """The least of the rounds."""
        return min(self.rounds)

    @property
    def high(self) -> float:
        """The most of the rounds."""
        return max(self.rounds)

    def per(self, parts: float) -> Figure:
        """The same for one of so many parts.

        Example:
            >>> Figure((2.0, 4.0)).per(2)
            Figure(rounds=(1.0, 2.0), unit='s')
        """
        return Figure(tuple(x / parts for x in self.rounds), self.unit)


def per(figures: Mapping[str, Figure], parts: float) -> dict[str, Figure]:
    """All figures for one of so many parts."""
    return {name: figure.per(parts) for name, figure in figures.items()}


def interleave(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Figure]:
    """Measures each contender in turn, again and again, every second time in the other direction: what one leaves
    behind in caches is not always the same one's to pay.

    Args:
        contenders: By name, functions that measure themselves once and return seconds. What they do before and after
            the part that counts (compiling, barriers) is theirs.
        repeats: How many rounds count. One more goes ahead of them and warms everything up.

    Returns:
        By name, the figures. A round has the same place in all of them.
    """
    measured: dict[str, list[float]] = {name: [] for name in contenders}
    for measure in contenders.values():
        measure()
    there = list(contenders.items())
    for turn in range(repeats):
        for name, measure in there if turn % 2 == 0 else reversed(there):
            measured[name].append(measure())
    return {name: Figure(tuple(rounds)) for name, rounds in measured.items()}


def jax_has_order() -> bool:
    """Whether effects of JAX's own can be ordered: for programs on several devices they cannot."""
    return jax.default_backend() != "cpu" or jax.device_count() == 1


def everywhere(x: jax.Array) -> jax.Array:
    """The array on all devices of CPUs that the process has, so that programs run on all of them."""
    if jax_has_order():
        return x
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(x, jax.NamedSharding(mesh, jax.P()))


def timed(run: Callable[[], Any], times: int = 1) -> float:
    """Seconds that a call takes, as a mean over `times` calls in a row. No garbage is collected meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        rounds = range(times)
        begin = time.perf_counter()
        for _ in rounds:
            run()
        return (time.perf_counter() - begin) / times
    finally:
        if was_enabled:
            gc.enable()
