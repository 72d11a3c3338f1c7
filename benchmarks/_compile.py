"""What effects cost before a program can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave, timed
from benchmarks._ratios import Ratio, cost, gain

PRINTS = 200
FEW, LANES = 10, 10_000
MANY = 2_000  # lanes of JAX's own print, which JAX unrolls


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
        repeats,
    )
    ratio = cost("fx.print / jax.debug.print", figures["fx.print"], figures["jax.debug.print"], at_most=1.1)
    return Result("program", [ratio], figures)


@case("lanes", f"tracing, lowering and compiling a print under vmap over {LANES:,} and over {FEW} lanes")
def lanes(repeats: int) -> Result:
    """One record has all lanes. JAX has an equation for each, and takes minutes for the many: it only has the few."""

    def contender(jit: Any, emit: Callable[[str, Any], None], count: int) -> Callable[[], float]:
        xs = jnp.arange(float(count))
        return lambda: timed(lambda: jit(jax.vmap(lambda x: emit("x = {}", x))).lower(xs).compile())

    figures = interleave(
        {
            f"fx.print, {LANES:,} lanes": contender(fx.jit, fx.print, LANES),
            f"fx.print, {FEW} lanes": contender(fx.jit, fx.print, FEW),
            f"jax.debug.print, {FEW} lanes": contender(jax.jit, jax.debug.print, FEW),
        },
        repeats,
    )
    many, few, jaxs = figures.values()
    ratios = [
        cost(f"{LANES:,} lanes / {FEW} lanes", many, few, at_most=1.1),
        gain(f"jax.debug.print / fx.print, {FEW} lanes", jaxs, few),
    ]
    return Result("program", ratios, figures)


@case("jax-lanes", f"tracing, lowering and compiling jax.debug.print under vmap over {MANY:,} lanes and over 2")
def jax_lanes(repeats: int) -> Result:
    """JAX's own print is ours from when it is traced. Under `jax.jit` it is unrolled, an equation for each lane."""

    def contender(jit: Any, count: int) -> Callable[[], float]:
        xs = jnp.arange(float(count))
        return lambda: timed(lambda: jit(jax.vmap(lambda x: jax.debug.print("x = {}", x))).lower(xs).compile())

    unrolled = jnp.arange(float(MANY))
    figures = interleave(
        {f"fx.jit, {MANY:,} lanes": contender(fx.jit, MANY), "fx.jit, 2 lanes": contender(fx.jit, 2)}, repeats
    )
    # Once: it takes half a minute.
    jaxs = timed(lambda: jax.jit(jax.vmap(lambda x: jax.debug.print("x = {}", x))).lower(unrolled).compile())
    figures[f"jax.jit, {MANY:,} lanes"] = Figure((jaxs,))
    many, few = (figures[f"fx.jit, {count}"] for count in (f"{MANY:,} lanes", "2 lanes"))
    ratios = [
        cost(f"{MANY:,} lanes / 2 lanes", many, few, at_most=1.1),
        Ratio(f"jax.jit / fx.jit, {MANY:,} lanes", (jaxs / many.median,), "more"),
    ]
    return Result("program", ratios, figures)
