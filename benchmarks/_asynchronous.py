"""Whether a call returns before its program has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import interleave, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import aside, cost, gain

PRINTS = 20
SECONDS = 0.08
ROUNDS_PER_REPEAT = 3  # one call is all that a round measures, so more of them


def _working(emit: Callable[[Any], None] | None) -> Callable[[Any, Any], Any]:
    """A program that takes `work` small steps between one print and the next.

    Its steps are large enough for XLA not to call the program cheap, as it runs cheap ones in the caller's thread, and
    small enough to keep only one core busy, so that with few cores the caller is not pushed off its own.
    """

    def program(x: Any, work: Any) -> Any:
        def part(i: Any, x: Any) -> Any:
            if emit is not None:
                emit(i)
            return jax.lax.fori_loop(0, work, lambda _, x: jnp.sin(x) + 1, x)

        return jax.lax.fori_loop(0, PRINTS, part, x)

    return program


@case("asynchronous", f"a program of {SECONDS * 1000:.0f} ms with {PRINTS} prints: until the call returns")
def asynchronous(repeats: int) -> Result:
    """The whole program's time is shown too; what counts is how early the caller has its thread back."""
    x = jnp.zeros(4096, jnp.float32)
    plain = jax.jit(_working(None))
    work = _calibrate(lambda work: plain(x, work).block_until_ready())

    def contender(run: Callable[..., Any], barrier: Callable[[], None] | None) -> Callable[[], float]:
        def measure() -> float:
            out = None

            def call() -> None:
                nonlocal out
                out = run(x, work)

            seconds = timed(call)
            jax.block_until_ready(out)
            if barrier is not None:
                barrier()
                written.expect(PRINTS)
            return seconds

        return measure

    with stdout_in_file() as written:
        figures = interleave(
            {
                "the whole plain program": lambda: timed(lambda: plain(x, work).block_until_ready()),
                "plain": contender(plain, None),
                "fx.print": contender(fx.jit(_working(lambda i: fx.print("part {}", i))), fx.effects_barrier),
                "jax.debug.print": contender(
                    jax.jit(_working(lambda i: jax.debug.print("part {}", i, ordered=True))), jax.effects_barrier
                ),
            },
            repeats * ROUNDS_PER_REPEAT,
        )
    _, at_once, ours, jaxs = figures.values()
    ratios = [
        cost("fx.print / plain", ours, at_once, at_most=2),
        aside("jax.debug.print / plain", jaxs, at_once),
        gain("jax.debug.print / fx.print", jaxs, ours),
    ]
    return Result("call until it returns", ratios, figures)


def _calibrate(run: Callable[[Any], Any]) -> Any:
    """How much work makes a program of about the time that it shall take."""
    work = 1
    run(jnp.int32(work))
    while (seconds := min(timed(lambda: run(jnp.int32(work))) for _ in range(3))) < SECONDS / 4:  # noqa: B023
        work *= 2
    return jnp.int32(max(1, round(work * SECONDS / seconds)))
