"""What a call costs the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import everywhere, interleave, jax_has_order, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import aside, cost, gain

CALLS = 1000


def _plain(x: Any) -> Any:
    return x + 1


def _ours(x: Any) -> Any:
    fx.print("x = {}", x)
    return x + 1


def _jaxs(x: Any) -> Any:
    jax.debug.print("x = {}", x, ordered=jax_has_order())
    return x + 1


@case(
    "dispatch",
    f"a jitted function with one ordered print: {CALLS:,} calls, the barrier outside of the measure",
    "quick",
)
def dispatch(repeats: int) -> Result:
    """Plain, ours and JAX's; all lines go to a file."""
    x = everywhere(jnp.float32(1))

    def contender(function: Callable[[Any], Any], barrier: Callable[[], None] | None) -> Callable[[], float]:
        def measure() -> float:
            seconds = timed(lambda: function(x), CALLS)
            function(x).block_until_ready()
            if barrier is not None:
                barrier()
                written.expect(CALLS + 1)
            return seconds

        function(x)
        if barrier is not None:
            barrier()
            written.expect(1)
        return measure

    with stdout_in_file() as written:
        figures = interleave(
            {
                "plain": contender(jax.jit(_plain), None),
                "fx.print": contender(fx.jit(_ours), fx.effects_barrier),
                "jax.debug.print": contender(jax.jit(_jaxs), jax.effects_barrier),
            },
            repeats,
        )
    plain, ours, jaxs = figures.values()
    ratios = [
        cost("fx.print / plain", ours, plain, at_most=1.6),
        aside("jax.debug.print / plain", jaxs, plain),
        gain("jax.debug.print / fx.print", jaxs, ours),
    ]
    return Result("call", ratios, figures)


@case("pure", f"a function without effects under fx.jit and under jax.jit: {CALLS:,} calls", "quick")
def pure(repeats: int) -> Result:
    """What `fx.jit` costs where there is nothing for it to do."""
    x = everywhere(jnp.float32(1))

    def contender(function: Callable[[Any], Any]) -> Callable[[], float]:
        def measure() -> float:
            seconds = timed(lambda: function(x), CALLS)
            function(x).block_until_ready()
            return seconds

        return measure

    figures = interleave({"jax.jit": contender(jax.jit(_plain)), "fx.jit": contender(fx.jit(_plain))}, repeats)
    ratio = cost("fx.jit / jax.jit", figures["fx.jit"], figures["jax.jit"], at_most=1.1)
    return Result("call", [ratio], figures)
