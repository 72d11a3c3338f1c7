"""What a record costs, inside a compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from benchmarks._cases import Ratio, Result, Target, case
from benchmarks._measure import Figure, interleave, timed
from benchmarks._output import Written, stdout_in_file

STEPS = 1000


def _looping(emit: Callable[[Any], None] | None) -> Callable[[Any], Any]:
    def loop(x: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            if emit is not None:
                emit(x)
            return x + 1

        return jax.lax.fori_loop(0, STEPS, step, x)

    return loop


_Contenders = dict[str, tuple[Callable[[Any], Any], Callable[[], None] | None]]


def _contenders() -> _Contenders:
    """By name: a compiled loop, and the barrier after which its lines are out."""
    return {
        "plain": (jax.jit(_looping(None)), None),
        "fx.print": (fx.jit(_looping(lambda x: fx.print("x = {}", x))), fx.effects_barrier),
        "jax.debug.print": (
            jax.jit(_looping(lambda x: jax.debug.print("x = {}", x, ordered=True))),
            jax.effects_barrier,
        ),
    }


def _per_step(figures: dict[str, Figure]) -> dict[str, Figure]:
    return {name: Figure(x.median / STEPS, x.low / STEPS, x.high / STEPS) for name, x in figures.items()}


def _until_all_is_out(contenders: _Contenders, repeats: int, start: Any = 0.0) -> dict[str, Figure]:
    """Measures from the call to the last line. `start`: the value with which the loop begins."""
    x = jnp.asarray(start, jnp.float32)

    def measuring(
        written: Written, run: Callable[[Any], Any], barrier: Callable[[], None] | None
    ) -> Callable[[], float]:
        def program() -> None:
            out = run(x)
            if barrier is None:
                out.block_until_ready()
            else:
                barrier()
            written.flush()

        def measure() -> float:
            seconds = timed(program)
            written.expect(0 if barrier is None else STEPS)
            return seconds

        return measure

    with stdout_in_file() as written:
        return interleave({name: measuring(written, *of) for name, of in contenders.items()}, repeats)


@case("loop", f"a print of a scalar in fori_loop({STEPS:,}), until the barrier returns and all is in a file")
def loop(repeats: int) -> Result:
    """From the call to the last line."""
    figures = _until_all_is_out(_contenders(), repeats)
    ours, jaxs = figures["fx.print"].median, figures["jax.debug.print"].median
    return Result(
        "step", [Ratio("jax.debug.print / fx.print", jaxs / ours, Target(20, at_least=True))], _per_step(figures)
    )


@case("arrays", f"a print of 16 floats in fori_loop({STEPS:,}), until the barrier returns and all is in a file")
def arrays(repeats: int) -> Result:
    """From the call to the last line. Each array is on a line of its own."""
    with np.printoptions(linewidth=200):
        figures = _until_all_is_out(_contenders(), repeats, np.arange(16) / 10)
    ours, jaxs = figures["fx.print"].median, figures["jax.debug.print"].median
    return Result(
        "step", [Ratio("jax.debug.print / fx.print", jaxs / ours, Target(40, at_least=True))], _per_step(figures)
    )


@case("unchanged", f"jax.debug.print(ordered=True) of a scalar in fori_loop({STEPS:,}), under jax.jit and under fx.jit")
def unchanged(repeats: int) -> Result:
    """What existing code gains, from the call to the last line."""

    def emit(x: Any) -> None:
        jax.debug.print("x = {}", x, ordered=True)

    contenders: _Contenders = {
        "fx.jit": (fx.jit(_looping(emit)), jax.effects_barrier),
        "jax.jit": (jax.jit(_looping(emit)), jax.effects_barrier),
    }
    figures = _until_all_is_out(contenders, repeats)
    ratio = figures["jax.jit"].median / figures["fx.jit"].median
    return Result("step", [Ratio("jax.jit / fx.jit", ratio, Target(20, at_least=True))], _per_step(figures))


@case("recording", f"the same loop of {STEPS:,} prints until the program's result is ready, the lines not waited for")
def recording(repeats: int) -> Result:
    """What the device spends; the lines come out on the host meanwhile and after."""
    x = jnp.float32(0)

    def measuring(
        written: Written, run: Callable[[Any], Any], barrier: Callable[[], None] | None
    ) -> Callable[[], float]:
        def measure() -> float:
            seconds = timed(lambda: run(x).block_until_ready())
            if barrier is not None:
                barrier()
                written.expect(STEPS)
            return seconds

        return measure

    with stdout_in_file() as written:
        figures = interleave({name: measuring(written, *of) for name, of in _contenders().items()}, repeats)
    plain, ours, jaxs = (figure.median for figure in figures.values())
    ratios = [Ratio("jax.debug.print / fx.print", jaxs / ours, Target(200, at_least=True))]
    if ours > plain:
        ratios.append(Ratio("the same, less the plain loop", (jaxs - plain) / (ours - plain)))
    return Result("step", ratios, _per_step(figures))
