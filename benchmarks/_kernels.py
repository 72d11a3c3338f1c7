"""What a print costs in a Pallas kernel that JAX simulates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave, per, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import aside, cost

GRIDS = ((32, 32), (10, 10))
"""A step of the simulation copies arrays, so that it costs the more the larger they are, however small its blocks."""
BLOCK = (8, 8)
STEPS = 1000


def _kernel(grid: tuple[int, int], emit: Callable[[Any], None] | None) -> Callable[[Any, Any], Any]:
    """A sum on blocks, with one effect for each program of the grid."""

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + y_ref[...]
        if emit is not None:
            emit(out_ref[0, 0])

    block = pl.BlockSpec(BLOCK, lambda i, j: (i, j))

    def add(x: Any, y: Any) -> Any:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, grid=grid, in_specs=[block, block], out_specs=block, out_shape=out, interpret=True
        )(x, y)

    return add


def _measured(grid: tuple[int, int], until_out: bool, repeats: int) -> dict[str, Figure]:
    """`until_out`: to the last line in the file, or else until the program's result is ready. A program of few steps is
    called several times, or what is measured would be its dispatch."""
    calls = max(1, STEPS // (grid[0] * grid[1]))
    steps = calls * grid[0] * grid[1]
    x = jnp.ones((grid[0] * BLOCK[0], grid[1] * BLOCK[1]), jnp.float32)
    contenders: dict[str, tuple[Any, Callable[[], Any], int]] = {
        "plain": (jax.jit(_kernel(grid, None)), lambda: None, 0),
        "fx.print": (fx.jit(_kernel(grid, lambda x: fx.print("x = {}", x))), fx.effects_barrier, steps),
        "jax.debug.print": (
            jax.jit(_kernel(grid, lambda x: jax.debug.print("x = {}", x))),
            jax.effects_barrier,
            steps,
        ),
    }

    def measuring(run: Callable[[Any, Any], Any], barrier: Callable[[], Any], lines: int) -> Callable[[], float]:
        def program() -> None:
            for _ in range(calls):
                run(x, x).block_until_ready()
            if until_out:
                barrier()

        def measure() -> float:
            seconds = timed(program)
            barrier()
            written.expect(lines)
            return seconds

        return measure

    with stdout_in_file() as written:
        figures = interleave({name: measuring(*of) for name, of in contenders.items()}, repeats)
    return per(figures, steps)


@case("kernel", f"a print in each grid step of a simulated kernel, with blocks of {BLOCK[0]} x {BLOCK[1]}")
def kernel(repeats: int) -> Result:
    """A step of the simulation with a print against one without."""
    ratios, found = [], {}
    for grid in GRIDS:
        ready, out = _measured(grid, False, repeats), _measured(grid, True, repeats)
        name, plain = f"grid {grid[0]} x {grid[1]}", ready["plain"]
        ratios += [
            cost(f"{name}: fx.print / plain", ready["fx.print"], plain, at_most=1.5),
            cost(f"{name}: until all lines are out", out["fx.print"], out["plain"]),
            aside(f"{name}: jax.debug.print / plain", ready["jax.debug.print"], plain),
        ]
        found |= {f"{name}: {contender}": figure for contender, figure in ready.items()}
        found |= {f"{name}: fx.print, all out": out["fx.print"]}
    return Result("grid step", ratios, found)
