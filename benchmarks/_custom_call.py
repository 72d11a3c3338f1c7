"""What the order of a custom call costs, inside a compiled loop."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._build import library
from benchmarks._cases import Result, case
from benchmarks._measure import Figure, interleave, timed
from benchmarks._ratios import Ratio, cost

STEPS = 10_000
SIZE, CYCLE = 256, 16
SOURCE = Path(__file__).parents[1] / "examples" / "custom_call" / "handlers.cc"


@case("custom", "10,000 ordered custom calls in a loop, against jax.ffi.ffi_call without an order", on_cpus=True)
def custom(repeats: int) -> Result:
    handler = library(SOURCE).cyclic_add
    jax.ffi.register_ffi_target("benchmark.cyclic_add", jax.ffi.pycapsule(handler), platform="cpu")
    fx.register_custom_call("benchmark.cyclic_add", handler)
    effect = fx.register_effect(fx.Effect("benchmark", kind="device"))
    shape = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    sizes: Any = {"m": CYCLE, "n": SIZE}
    a, b = jnp.ones(CYCLE), jnp.zeros(SIZE)

    def jaxs(a: Any, b: Any) -> Any:
        return jax.ffi.ffi_call("benchmark.cyclic_add", shape)(a, b, **sizes)

    def ours(a: Any, b: Any, effect: Any) -> Any:
        return fx.custom_call("benchmark.cyclic_add", shape, a, b, effect=effect, **sizes)

    def looping(jit: Callable[..., Any], step: Callable[..., Any]) -> Callable[[], float]:
        run = jit(lambda a, b: jax.lax.fori_loop(0, STEPS, lambda _, b: step(a, b), b))
        assert run(a, b).tolist() == [STEPS] * SIZE
        return lambda: timed(lambda: run(a, b).block_until_ready()) / STEPS

    figures: dict[str, Figure] = interleave(
        {
            "jax.ffi.ffi_call": looping(jax.jit, jaxs),
            "fx.custom_call, ordered": looping(fx.jit, functools.partial(ours, effect=effect)),
            "fx.custom_call, no effect": looping(fx.jit, functools.partial(ours, effect=None)),
        },
        repeats,
    )
    plain, ordered, unordered = figures.values()
    ratios = [
        cost("ordered custom call / ffi_call", ordered, plain, at_most=1.3),
        cost("custom call without effect / ffi_call", unordered, plain),
    ]
    return Result("call", ratios, figures)


CALLS = 1000
PROGRAM_SECONDS = 0.005
HOST_SECONDS = 0.008
"""What the host does between two calls takes longer than a program, or the device would come to be behind."""


@case(
    "free",
    f"{CALLS} calls of a {1000 * PROGRAM_SECONDS:.0f} ms program with an ordered custom call: the host's share",
    on_cpus=True,
)
def free(repeats: int) -> Result:
    """How much of the time the calls take from the host, which has other things to do between them."""
    handler = library(SOURCE).cyclic_add
    fx.register_custom_call("benchmark.cyclic_add", handler)
    effect = fx.register_effect(fx.Effect("benchmark", kind="device"))
    shape = jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    x = jnp.full((SIZE, SIZE), 0.5, jnp.float32)

    def work(x: Any, turns: int) -> Any:
        return jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x) * 1.01, x)

    def calling(x: Any, turns: int) -> Any:
        y = work(x, turns)
        return fx.custom_call("benchmark.cyclic_add", shape, y[0, :CYCLE], y[0], effect=effect, m=CYCLE, n=SIZE)

    turns = 8
    while (seconds := _shortest(jax.jit(functools.partial(work, turns=turns)), x)) < PROGRAM_SECONDS / 2:
        turns *= 2
    turns = max(1, round(turns * PROGRAM_SECONDS / seconds))

    def measure(program: Any) -> Callable[[], float]:
        jax.block_until_ready(program(x))
        return lambda: _share_of_calls(program, x)

    figures = interleave(
        {
            "plain": measure(jax.jit(functools.partial(work, turns=turns))),
            "with an ordered custom call": measure(fx.jit(functools.partial(calling, turns=turns))),
        },
        max(1, repeats // 3),
    )
    share = figures["with an ordered custom call"].per(HOST_SECONDS).rounds
    return Result("call", [Ratio("time in calls / all", share, "less", 0.05)], figures)


def _shortest(run: Callable[[Any], Any], x: Any) -> float:
    return min(timed(lambda: jax.block_until_ready(run(x))) for _ in range(4))


def _share_of_calls(program: Callable[[Any], Any], x: Any) -> float:
    """Seconds that a call takes, of as many as there are."""
    in_calls, result = 0.0, None
    for _ in range(CALLS):
        begin = time.perf_counter()
        result = program(x)
        in_calls += time.perf_counter() - begin
        time.sleep(max(0.0, begin + HOST_SECONDS - time.perf_counter()))
    jax.block_until_ready(result)
    fx.effects_barrier()
    return in_calls / CALLS
