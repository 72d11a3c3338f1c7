"""What effects cost before a program can run."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave, timed
from benchmarks._ratios import Ratio, cost, gain

EQUATIONS = (1_000, 10_000)
DEPTH = 20
PRINTS = 200
FEW, LANES = 10, 10_000
_PROGRAMS = itertools.count()
MANY = 2_000  # lanes of JAX's own print, which JAX unrolls


def _straight(equations: int, every: int, emit: Callable[[str, Any], None]) -> Callable[[Any], Any]:
    """A function of so many equations, with one more that emits behind each `every` of them; 0: none. It is new, and
    so are its texts: nothing of it is cached."""
    new = next(_PROGRAMS)

    def program(x: Any) -> Any:
        for i in range(0, equations, 2):
            x = jnp.sin(x) * 1.5
            if every and i % every == 0:
                emit(f"program {new}, equation {i}: {{}}", x)
        return x

    return program


def _nested(depth: int, emits: Callable[[int], bool]) -> Callable[[Any], Any]:
    """A function of loops and branches, one in the other, that emits where `emits` says so of how many are inside."""

    def level(depth: int, x: Any) -> Any:
        x = jnp.sin(x)
        if emits(depth):
            fx.print(f"depth {depth}: {{}}", x)
        if depth == 0:
            return x
        if depth % 2:
            return jax.lax.fori_loop(0, 2, lambda _, x: level(depth - 1, x) * 1.5, x)
        return jax.lax.cond(x > 0, lambda x: level(depth - 1, x) + 1, lambda x: x - 1, x)

    return lambda x: level(depth, x)


def _lowered(jit: Any, make: Callable[..., Callable[[Any], Any]], *args: Any) -> Callable[[], float]:
    """Measures the processor time of this thread, which does all of it: what else the machine does adds nothing."""
    x = jnp.float32(1)

    def measure() -> float:
        took = 0.0

        def lower() -> None:
            nonlocal took
            begin = time.thread_time()
            jit(make(*args)).trace(x).lower()
            took = time.thread_time() - begin

        timed(lower)  # which keeps the garbage collector from running meanwhile
        return took

    return measure


@case(
    "equations", f"tracing and lowering {' and '.join(f'{n:,}' for n in EQUATIONS)} equations, with prints and without"
)
def equations(repeats: int) -> Result:
    """A straight program. A print is an equation of its own, which the program without effects does not have: so there
    are ratios for the programs as a whole, for each equation, and to JAX's own prints, which have no order."""
    figures, ratios = {}, []
    for n in EQUATIONS:
        found = interleave(
            {
                "jax.jit": _lowered(jax.jit, _straight, n, 0, fx.print),
                "fx.jit": _lowered(fx.jit, _straight, n, 0, fx.print),
                "fx.print in 100": _lowered(fx.jit, _straight, n, 100, fx.print),
                "fx.print in 10": _lowered(fx.jit, _straight, n, 10, fx.print),
                "jax.debug.print in 10": _lowered(jax.jit, _straight, n, 10, jax.debug.print),
            },
            repeats,
        )
        plain, none, few, many, jaxs = found.values()
        whole = cost("with a print in 10 / without", many, plain)
        each = dataclasses.replace(
            whole, label="the same, for each equation", rounds=tuple(x / 1.1 for x in whole.rounds), bound=1.2
        )
        ratios += [
            cost(f"fx.jit / jax.jit, {n:,} equations", none, plain, at_most=1.2),
            cost("with a print in 100 / without", few, plain, at_most=1.2),
            whole,
            each,
            cost("fx.print / jax.debug.print in 10", many, jaxs, at_most=1.2),
        ]
        figures |= {f"{name}, {n:,} equations": figure for name, figure in found.items()}
    few, many = EQUATIONS
    for name, bound in ("jax.jit", None), ("fx.print in 10", 1.2):
        small, large = (figures[f"{name}, {n:,} equations"] for n in EQUATIONS)
        rounds = tuple(y / x * few / many for x, y in zip(small.rounds, large.rounds, strict=True))
        better = None if bound is None else "less"
        ratios.append(Ratio(f"{name}: {many:,} / {few:,}, for each equation", rounds, better, bound))
    return Result("program", ratios, figures)


@case("depth", f"tracing and lowering loops and branches {DEPTH} deep, with prints and without")
def depth(repeats: int) -> Result:
    """Every loop and every branch carries the token."""
    figures = interleave(
        {
            "jax.jit": _lowered(jax.jit, _nested, DEPTH, lambda depth: False),
            "fx.jit": _lowered(fx.jit, _nested, DEPTH, lambda depth: False),
            "fx.print in the innermost": _lowered(fx.jit, _nested, DEPTH, lambda depth: depth == 0),
            "fx.print in each": _lowered(fx.jit, _nested, DEPTH, lambda depth: True),
        },
        repeats,
    )
    plain, none, one, all_ = figures.values()
    ratios = [
        cost("fx.jit / jax.jit", none, plain, at_most=1.2),
        cost("with a print in the innermost / without", one, plain, at_most=1.2),
        cost("with a print in each / without", all_, plain),
    ]
    return Result("program", ratios, figures)


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
    """A straight program: every print is a site of its own, which is new."""
    x = jnp.float32(0)

    def contender(jit: Any, emit: Callable[[int, Any], None]) -> Callable[[], float]:
        return lambda: timed(lambda: jit(_printing(emit)).lower(x).compile())

    def text(i: int) -> str:
        return f"program {next(_PROGRAMS)}, print {i}: {{}}"

    figures = interleave(
        {
            "fx.print": contender(fx.jit, lambda i, x: fx.print(text(i), x)),
            "jax.debug.print": contender(jax.jit, lambda i, x: jax.debug.print(text(i), x, ordered=True)),
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
