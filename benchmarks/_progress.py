"""What a bar costs a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import interleave, per, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import cost

STEPS = 1_000_000
SIZE = 8
BOUND = 1.01


def _body(x: Any) -> Any:
    return jnp.tanh(x @ x) * 1.01 + 0.1


def _updating(x: Any) -> Any:
    bar = fx.progress(STEPS, "update")

    def step(i: Any, x: Any) -> Any:
        bar.update(i + 1)
        return _body(x)

    return jax.lax.fori_loop(0, STEPS, step, x)


LOOPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "fori_loop": (
        lambda x: jax.lax.fori_loop(0, STEPS, lambda _, x: _body(x), x),
        lambda x: fx.fori_loop_with_progress(0, STEPS, lambda _, x: _body(x), x),
    ),
    "scan": (
        lambda x: jax.lax.scan(lambda x, y: (_body(x) + y, y), x, jnp.arange(STEPS, dtype=jnp.float32)),
        lambda x: fx.scan_with_progress(lambda x, y: (_body(x) + y, y), x, jnp.arange(STEPS, dtype=jnp.float32)),
    ),
}
"""By name: a loop, and the same with a bar."""


@case(
    "progress",
    f"loops of {STEPS:,} steps, each a product of {SIZE} x {SIZE} matrices, with a bar, until the barrier returns",
)
def progress(repeats: int) -> Result:
    """The output is a file, which gets a line for each tenth."""
    measures: dict[str, Callable[[], float]] = {}

    def add(name: str, loop: Callable[[Any], Any], jit: Callable[..., Any]) -> None:
        run = jit(loop)

        def call() -> None:
            jax.block_until_ready(run(jnp.full((SIZE, SIZE), 0.1)))
            fx.effects_barrier()

        measures[name] = lambda: timed(call)

    for name, (plain, ours) in LOOPS.items():
        add(name, plain, jax.jit)
        add(f"{name} with a bar", ours, fx.jit)
    add("bar.update in each step", _updating, fx.jit)
    with stdout_in_file():
        figures = interleave(measures, repeats)
    ratios = [
        cost(f"{name} with a bar / without", figures[f"{name} with a bar"], figures[name], at_most=BOUND)
        for name in LOOPS
    ]
    updating = figures["bar.update in each step"]
    ratios.append(cost("bar.update in each step / fori_loop without", updating, figures["fori_loop"]))
    return Result("step", ratios, per(figures, STEPS))
