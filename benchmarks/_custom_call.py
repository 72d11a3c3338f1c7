"""What the order of a custom call costs, inside a compiled loop."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
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
