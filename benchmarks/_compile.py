"""What effects cost before a program can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Ratio, Result, case
from benchmarks._measure import interleave, timed

PRINTS = 200
REPEATS = 5  # compiling takes long, and varies little


def _printing(emit: Callable[[int, Any], None]) -> Callable[[Any], Any]:
    """A function that JAX has not seen before, so that nothing is cached.

    Nothing is computed between the prints: XLA would make a kernel of each piece, and that is what would be measured.
    """

    def program(x: Any) -> Any:
        for i in range(PRINTS):
            emit(i, x)
        return x + 1

    return program


@case("compile", f"tracing, lowering and compiling {PRINTS} prints")
def compile(repeats: int) -> Result:
    """A straight program: every print is a site of its own."""
    x = jnp.float32(0)

    def contender(jit: Any, emit: Callable[[int, Any], None]) -> Callable[[], float]:
        return lambda: timed(lambda: jit(_printing(emit)).lower(x).compile())

    figures = interleave(
        {
            "fx.print": contender(fx.jit, lambda i, x: fx.print(f"print {i}: {{}}", x)),
            "jax.debug.print": contender(jax.jit, lambda i, x: jax.debug.print(f"print {i}: {{}}", x, ordered=True)),
        },
        min(repeats, REPEATS),
    )
    ours, jaxs = figures["fx.print"].median, figures["jax.debug.print"].median
    return Result("program", [Ratio("jax.debug.print / fx.print", jaxs / ours)], figures)
