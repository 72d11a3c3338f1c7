"""What a print costs in programs with few and with many, and in few and in many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._growth import Points, measure_growth, scaling
from benchmarks._measure import timed
from benchmarks._output import stdout_in_file

FEW, MANY = (1, 10, 100, 1_000), (100, 1_000, 10_000)
PRINTS = 100  # at least so many are measured at a time
THREADS = (1, 2, 4, 8, 16, 32)
CALLS = 50


def _jaxs_print(*args: Any) -> None:
    jax.debug.print(*args, ordered=True)


def _straight(emit: Callable[..., None], prints: int) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        for i in range(prints):
            emit(f"print {i}: {{}}", x)
        return x + 1

    return program


def _in_programs(sizes: tuple[int, ...], repeats: int) -> Result:
    x = jnp.float32(1)

    def measuring(run: Callable[[Any], Any], prints: int) -> Callable[[], float]:
        calls = max(1, PRINTS // prints)

        def go() -> None:
            for _ in range(calls):
                run(x)
            jax.effects_barrier()

        def measure() -> float:
            seconds = timed(go)
            written.expect(calls * prints)
            return seconds / (calls * prints)

        return measure

    contenders = {"fx.print": (fx.jit, fx.print), "jax.debug.print": (jax.jit, _jaxs_print)}
    points: Points = {
        (name, prints): measuring(jit(_straight(emit, prints)), prints)
        for name, (jit, emit) in contenders.items()
        for prints in sizes
    }
    with stdout_in_file() as written:
        figures = measure_growth(points, repeats)
    return scaling(figures, of="prints in a program", per="print", ours="fx.print", jaxs="jax.debug.print")


@case("scale-prints", f"a straight program with {FEW[0]} to {FEW[-1]:,} prints, until all is in a file")
def prints(repeats: int) -> Result:
    """Compiling is no part of it."""
    return _in_programs(FEW, repeats)


@case("scale-prints-more", f"the same with {MANY[0]} to {MANY[-1]:,} prints, which take minutes to compile", "slow")
def more_prints(repeats: int) -> Result:
    """Repeated less, since JAX's own takes seconds."""
    return _in_programs(MANY, min(repeats, 5))


@case("scale-threads", f"{THREADS[0]} to {THREADS[-1]} threads, each calls a function with a print, until all are out")
def threads(repeats: int) -> Result:
    """The time of all, for one of their calls: Python's lock lets one thread call at a time."""
    x = jnp.float32(1)

    def measuring(
        run: Callable[[Any], Any], barrier: Callable[[], None], count: int, lines: int
    ) -> Callable[[], float]:
        start = threading.Barrier(count + 1)
        pool = ThreadPoolExecutor(count)

        def call() -> None:
            start.wait()
            for _ in range(CALLS):
                run(x)
            barrier()

        def measure() -> float:
            done = [pool.submit(call) for _ in range(count)]

            def go() -> None:
                start.wait()
                for one in done:
                    one.result()

            seconds = timed(go)
            written.expect(lines * CALLS * count)
            return seconds / (CALLS * count)

        return measure

    contenders: dict[str, tuple[Any, Callable[[], None], int]] = {
        "plain": (jax.jit(lambda x: x + 1), lambda: None, 0),
        "fx.print": (fx.jit(_straight(fx.print, 1)), fx.effects_barrier, 1),
        "jax.debug.print": (jax.jit(_straight(_jaxs_print, 1)), jax.effects_barrier, 1),
    }
    points: Points = {
        (name, count): measuring(run, barrier, count, lines)
        for name, (run, barrier, lines) in contenders.items()
        for count in THREADS
    }
    with stdout_in_file() as written:
        figures = measure_growth(points, repeats)
    names = {"ours": "fx.print", "jaxs": "jax.debug.print", "plain": "plain"}
    return scaling(figures, of="threads", per="call", **names)
