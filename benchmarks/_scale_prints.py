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

SIZES = (1, 10, 100, 1_000, 10_000)
STRAIGHT = 1_000
"""So many prints are in straight code, and more in turns of a loop: XLA takes minutes to compile a straight program of
10,000 custom calls, whosever they are."""
COMPILED = (10, 100, 1_000, 10_000)
AT_A_TIME = 100  # of small programs, several are called
THREADS = (1, 2, 4, 8, 16, 32)
CALLS = 50


def _jaxs_print(*args: Any) -> None:
    jax.debug.print(*args, ordered=True)


def _straight(emit: Callable[..., None], prints: int) -> Callable[[Any], Any]:
    def straight(x: Any) -> Any:
        for i in range(prints):
            emit(f"print {i}: {{}}", x)
        return x + 1

    return straight


def _printing(emit: Callable[..., None], prints: int) -> Callable[[Any], Any]:
    straight = _straight(emit, min(prints, STRAIGHT))
    if prints <= STRAIGHT:
        return straight
    return lambda x: jax.lax.fori_loop(0, prints // STRAIGHT, lambda _, x: straight(x), x)


@case("scale-prints", f"a program with {SIZES[0]} to {SIZES[-1]:,} prints, until all is in a file")
def prints(repeats: int) -> Result:
    """Compiling is no part of it."""
    x = jnp.float32(1)

    def measuring(run: Callable[[Any], Any], prints: int) -> Callable[[], float]:
        calls = max(1, AT_A_TIME // prints)

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
        (name, prints): measuring(jit(_printing(emit, prints)), prints)
        for name, (jit, emit) in contenders.items()
        for prints in SIZES
    }
    with stdout_in_file() as written:
        figures = measure_growth(points, repeats)
    return scaling(figures, of="prints in a program", per="print", ours="fx.print", jaxs="jax.debug.print")


@case(
    "scale-compile",
    f"tracing, lowering and compiling {COMPILED[0]} to {COMPILED[-1]:,} prints in straight code",
    "slow",
)
def compiling(repeats: int) -> Result:
    """Once, since XLA takes minutes for JAX's 10,000 custom calls, each of which it compares with each. Ours
    are one call, as nothing stands between them."""
    x = jnp.float32(1)

    def measuring(jit: Any, emit: Callable[..., None], prints: int) -> Callable[[], float]:
        return lambda: timed(lambda: jit(_straight(emit, prints)).lower(x).compile()) / prints

    contenders = {"fx.print": (fx.jit, fx.print), "jax.debug.print": (jax.jit, _jaxs_print)}
    points = {(name, n): measuring(*how, n) for name, how in contenders.items() for n in COMPILED}
    figures = measure_growth(points, 1)
    return scaling(figures, of="prints in straight code", per="print", ours="fx.print", jaxs="jax.debug.print")


@case("scale-threads", f"{THREADS[0]} to {THREADS[-1]} threads, each calls a function with a print, until all are out")
def threads(repeats: int) -> Result:
    """The time of all, for one of their calls: Python's lock lets one thread call at a time. Plain calls of JAX's take
    longer when many threads want that lock."""
    x = jnp.float32(1)

    def measuring(
        run: Callable[[Any], Any], barrier: Callable[[], None], count: int, lines: int | None
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
            written.expect(None if lines is None else lines * CALLS * count)
            return seconds / (CALLS * count)

        return measure

    contenders: dict[str, tuple[Any, Callable[[], None], int | None]] = {
        "plain": (jax.jit(lambda x: x + 1), lambda: None, 0),
        "fx.print": (fx.jit(_printing(fx.print, 1)), fx.effects_barrier, 1),
        # From several threads at a time: now and then one loses another's line.
        "jax.debug.print": (jax.jit(_printing(_jaxs_print, 1)), jax.effects_barrier, None),
    }
    points: Points = {
        (name, count): measuring(run, barrier, count, lines)
        for name, (run, barrier, lines) in contenders.items()
        for count in THREADS
    }
    with stdout_in_file() as written:
        figures = measure_growth(points, repeats)
    return scaling(
        figures, of="threads", per="call", ours="fx.print", jaxs="jax.debug.print", plain="plain", beside_plain=True
    )
