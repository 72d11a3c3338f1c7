"""What effects cost that are left out, inside a compiled loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._build import library
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave, per, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import Ratio, cost

STEPS = 1_000_000
SOURCE = Path(__file__).parent / "noop_handler.cc"


def _looping(emit: Callable[[Any], None]) -> Callable[[Any], Any]:
    return lambda x: jax.lax.fori_loop(0, STEPS, lambda _, x: (emit(x), x + 1)[1], x)


def _calling_nothing(x: Any) -> Any:
    """As a record's call: it is given a token, which it gives back, and a value."""

    def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        x, token = carry
        call = jax.ffi.ffi_call(
            "benchmark.nothing", jax.typeof(token), has_side_effect=True, input_output_aliases={0: 0}
        )
        return x + 1, call(token, x)

    return jax.lax.fori_loop(0, STEPS, step, (x, jnp.zeros(4, jnp.uint32)))[0]


def _in_a_cond(x: Any) -> None:
    jax.lax.cond(x < 0, lambda: fx.print("x = {}", x), lambda: None)


@case("filters", f"a print that is left out in fori_loop({STEPS:,})", on_cpus=True)
def filters(repeats: int) -> Result:
    """Until the barrier returns."""
    jax.ffi.register_ffi_target("benchmark.nothing", jax.ffi.pycapsule(library(SOURCE).nothing), platform="cpu")
    logging.getLogger("benchmark.filters").setLevel(logging.INFO)
    contenders = {
        "no print": jax.jit(_looping(lambda x: None)),
        "a handler that returns at once": jax.jit(_calling_nothing),
        "below its level": fx.jit(_looping(lambda x: fx.print("x = {}", x, level="debug", logger="benchmark.filters"))),
        "every=1000": fx.jit(_looping(lambda x: fx.print("x = {}", x, every=1000))),
        "in a cond that never holds": fx.jit(_looping(_in_a_cond)),
        "when= that never holds": fx.jit(_looping(lambda x: fx.print("x = {}", x, when=x < 0))),
    }
    shown = {"every=1000": STEPS // 1000}

    def measuring(name: str, run: Callable[[Any], Any]) -> Callable[[], float]:
        def program() -> None:
            run(jnp.float32(0)).block_until_ready()
            fx.effects_barrier()

        def measure() -> float:
            seconds = timed(program)
            written.expect(shown.get(name, 0))
            return seconds

        return measure

    with stdout_in_file() as written:
        figures = interleave({name: measuring(name, run) for name, run in contenders.items()}, repeats)
    handler = figures["a handler that returns at once"]
    ratios = [
        _cost("every=1000", figures, handler, 1.05),
        _cost("below its level", figures, handler, 1.0),
        _cost("when= that never holds", figures, figures["in a cond that never holds"], 1.05),
    ]
    return Result("step", ratios, per(figures, STEPS))


def _cost(name: str, figures: dict[str, Figure], other: Figure, at_most: float) -> Ratio:
    [of] = [label for label, figure in figures.items() if figure is other]
    return cost(f"{name} / {of}", figures[name], other, at_most)
