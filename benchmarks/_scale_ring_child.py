"""Runs a loop of prints for each line that it reads, and says how long a step took: `python -m
benchmarks._scale_ring_child NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._measure import timed
from benchmarks._output import stdout_in_file

STEPS = {"plain": 10_000, "fx.print": 10_000, "jax.debug.print": 500}


def main(name: str) -> None:
    """The ring is of the size that the environment names."""
    emits: dict[str, tuple[Any, Callable[[Any], None]]] = {
        "plain": (jax.jit, lambda x: None),
        "fx.print": (fx.jit, lambda x: fx.print("x = {}", x)),
        "jax.debug.print": (jax.jit, lambda x: jax.debug.print("x = {}", x, ordered=True)),
    }
    jit, emit = emits[name]
    steps = STEPS[name]

    def step(_: Any, x: Any) -> Any:
        emit(x)
        return x + 1

    run = jit(lambda x: jax.lax.fori_loop(0, steps, step, x))
    x = jnp.float32(0)

    def go() -> None:
        run(x).block_until_ready()
        jax.effects_barrier()

    report = sys.stdout
    with stdout_in_file() as written:
        for _ in sys.stdin:
            seconds = timed(go) / steps
            written.expect(0 if name == "plain" else steps)
            print(seconds, file=report, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
