"""What a record costs, inside a compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, everywhere, interleave, jax_has_order, per, timed
from benchmarks._output import Written, stdout_in_file
from benchmarks._ratios import Ratio, gain

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
            jax.jit(_looping(lambda x: jax.debug.print("x = {}", x, ordered=jax_has_order()))),
            jax.effects_barrier,
        ),
    }


def _until_all_is_out(contenders: _Contenders, repeats: int, start: Any = 0.0) -> dict[str, Figure]:
    """Measures from the call to the last line. `start`: the value with which the loop begins."""
    x = everywhere(jnp.asarray(start, jnp.float32))

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


def _against_jaxs(figures: dict[str, Figure], at_least: float) -> Result:
    ratio = gain("jax.debug.print / fx.print", figures["jax.debug.print"], figures["fx.print"], at_least)
    return Result("step", [ratio], per(figures, STEPS))


@case("loop", f"a print of a scalar in fori_loop({STEPS:,}), until the barrier returns and all is in a file", "quick")
def loop(repeats: int) -> Result:
    """From the call to the last line."""
    return _against_jaxs(_until_all_is_out(_contenders(), repeats), 20)


@case("arrays", f"a print of 16 floats in fori_loop({STEPS:,}), until the barrier returns and all is in a file")
def arrays(repeats: int) -> Result:
    """From the call to the last line. Each array is on a line of its own."""
    with np.printoptions(linewidth=200):
        figures = _until_all_is_out(_contenders(), repeats, np.arange(16) / 10)
    return _against_jaxs(figures, 40)


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
    ratio = gain("jax.jit / fx.jit", figures["jax.jit"], figures["fx.jit"], at_least=20)
    return Result("step", [ratio], per(figures, STEPS))


@case(
    "recording",
    f"the same loop of {STEPS:,} prints until the program's result is ready, the lines not waited for",
    "quick",
)
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
    plain, ours, jaxs = figures.values()
    ratios = [gain("jax.debug.print / fx.print", jaxs, ours, at_least=200)]
    if ours.median > plain.median:
        less_plain = (jaxs.median - plain.median) / (ours.median - plain.median)
        ratios.append(Ratio("the same, less the plain loop", (less_plain,), "more"))
    return Result("step", ratios, per(figures, STEPS))
