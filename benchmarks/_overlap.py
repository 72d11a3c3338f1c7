"""Whether a function on the host and computation in a program overlap, between the start of the one and its done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import interleave, timed
from benchmarks._ratios import cost

SECONDS = 0.05
TURNS = 4
BOUND = 1.3
"""How much longer than the longer of the two they may take together."""

LINKS = 256
"""Of how many operations a chain is at most. On a GPU thousands of the products take as long as the function."""

F32 = jax.ShapeDtypeStruct((), jnp.float32)


def _host(x: np.ndarray) -> np.float32:
    time.sleep(SECONDS)  # what is waited for is elsewhere: a disk, a network
    return np.float32(1)


def _chain(x: Any, work: int) -> Any:
    """Straight code, which XLA may put before and after the start and the done as it likes, and of a length that can be
    compiled: where so many products are computed too soon, each link of the chain is a loop of some."""

    def product(_: Any, x: Any) -> Any:
        return jnp.dot(x, x) * 1e-3

    links = min(work, LINKS)
    for link in range(links):
        products = work // links + (link < work % links)
        x = product(0, x) if products == 1 else jax.lax.fori_loop(0, products, product, x)
    return x


def _loop(x: Any, work: int) -> Any:
    return jax.lax.fori_loop(0, work, lambda _, x: jnp.sin(x) * 1.01, x)


def _start(x: Any) -> fx.Future:
    return fx.async_callback(_host, F32, x[0, 0])


@case("overlap", f"a function of {SECONDS * 1000:.0f} ms on the host, and as much computation in the program meanwhile")
def overlap(repeats: int) -> Result:
    """In straight code, for two kinds of computation; within each turn of a loop; and carried from turn to turn."""
    x = jnp.full((320, 320), 0.5, jnp.float32)
    measures: dict[str, Callable[[], float]] = {}

    def add(name: str, run: Callable[[Any], Any], times: int = 1) -> None:
        measures[name] = lambda: timed(lambda: jax.block_until_ready(run(x))) / times

    kinds = {"chain": _chain, "loop": _loop}
    for kind, compute in kinds.items():
        work = _calibrate(lambda work, compute=compute: jax.jit(lambda x: compute(x, work)), x)

        def computed(x: Any, compute: Any = compute, work: int = work) -> Any:
            return compute(x, work)

        def straight(x: Any, computed: Any = computed) -> Any:
            future = _start(x)
            return computed(x) + fx.async_done(future)

        def in_turns(x: Any, computed: Any = computed) -> Any:
            return jax.lax.fori_loop(0, TURNS, lambda _, x: straight(x, computed) * 0.1, x)

        def carried(x: Any, computed: Any = computed) -> Any:
            def turn(_: Any, carry: Any) -> Any:
                x, future = carry
                y = computed(x)
                return y + fx.async_done(future) * 0.1, _start(y)

            x, future = jax.lax.fori_loop(0, TURNS - 1, turn, (x, _start(x)))
            return computed(x) + fx.async_done(future)

        add(f"{kind}: computation", jax.jit(computed))
        add(f"{kind}: straight", fx.jit(straight))
        add(f"{kind}: in turns", fx.jit(in_turns), TURNS)
        add(f"{kind}: carried", fx.jit(carried), TURNS)
    measures["the function"] = lambda: timed(lambda: _host(np.zeros(())))
    figures = interleave(measures, repeats)
    ratios = []
    for kind in kinds:
        longer = max(figures["the function"], figures[f"{kind}: computation"], key=lambda figure: figure.median)
        for form in ("straight", "in turns", "carried"):
            ratios.append(cost(f"{kind}, {form} / the longer of the two", figures[f"{kind}: {form}"], longer, BOUND))
    return Result("start, computation and done", ratios, figures)


def _calibrate(compile_for: Callable[[int], Callable[[Any], Any]], x: Any) -> int:
    """How much work takes as long as the function."""
    work = 16
    while True:
        run = compile_for(work)
        jax.block_until_ready(run(x))
        seconds = min(timed(lambda: jax.block_until_ready(run(x))) for _ in range(3))  # noqa: B023
        if seconds > SECONDS / 4:
            return max(1, round(work * SECONDS / seconds))
        work *= 2
