"""What the order of a custom call costs, inside a compiled loop."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Ratio, Result, Target, case
from benchmarks._measure import Figure, interleave, timed

STEPS = 10_000
SIZE, CYCLE = 256, 16
SOURCE = Path(__file__).parents[1] / "examples" / "custom_call" / "handlers.cc"


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """The handlers in a source."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise SystemExit("This benchmark calls a handler of its own. It is compiled first. Install a C++ compiler.")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "handlers.so")
        includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
        subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", built, source, *includes], check=True)
        return ctypes.CDLL(str(built))


@case("custom", "10,000 ordered custom calls in a loop, against jax.ffi.ffi_call without an order")
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
    plain = figures["jax.ffi.ffi_call"].median
    ratios = [
        Ratio("ordered custom call / ffi_call", figures["fx.custom_call, ordered"].median / plain, Target(1.3)),
        Ratio("custom call without effect / ffi_call", figures["fx.custom_call, no effect"].median / plain),
    ]
    return Result("call", ratios, figures)


CALLS = 1000
PROGRAM_SECONDS = 0.005
HOST_SECONDS = 0.008
"""What the host does between two calls takes longer than a program, or the device would come to be behind."""


@case(
    "free", f"{CALLS} calls of a {1000 * PROGRAM_SECONDS:.0f} ms program with an ordered custom call: the host's share"
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
    share = figures["with an ordered custom call"].median / HOST_SECONDS
    return Result("call", [Ratio("time in calls / all", share, Target(0.05))], figures)


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
