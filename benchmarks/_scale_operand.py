"""What a callback costs with small and with large operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._growth import measure_growth, scaling
from benchmarks._measure import timed

SIZES = (4, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20, 256 << 20)
LARGE = (64 << 20, 256 << 20, 1 << 30)
AT_A_TIME = 1 << 20  # bytes: of small operands, several are measured
MOST_CALLS = 100


def _with_operands(sizes: tuple[int, ...], repeats: int) -> Result:
    """From the call to the end of the callback, which looks at the last value."""
    seen: list[float] = []

    def look(x: Any) -> None:
        seen.append(float(x[-1]))

    contenders: dict[str, tuple[Any, Callable[[], None]]] = {
        "fx.callback": (fx.jit(lambda x: fx.callback(look, None, x)), fx.effects_barrier),
        "io_callback": (jax.jit(lambda x: io_callback(look, None, x, ordered=True)), jax.effects_barrier),
    }

    def measuring(run: Callable[[Any], Any], barrier: Callable[[], None], x: Any, calls: int) -> Callable[[], float]:
        def go() -> None:
            for _ in range(calls):
                run(x)
            barrier()

        def measure() -> float:
            seconds = timed(go)
            if seen != [1.0] * calls:
                raise AssertionError("The operands did not come. The measurement is void.")
            seen.clear()
            return seconds / calls

        return measure

    points: dict[tuple[str, int], Callable[[], float]] = {}
    for size in sizes:
        x = jnp.ones(size // 4, jnp.float32).block_until_ready()
        host, warm = np.asarray(x), np.ones(size // 4, np.float32)
        calls = max(1, min(MOST_CALLS, AT_A_TIME // size))
        points["a copy", size] = lambda warm=warm, host=host, calls=calls: timed(lambda: np.copyto(warm, host), calls)
        for name, (run, barrier) in contenders.items():
            points[name, size] = measuring(run, barrier, x, calls)
    return scaling(
        measure_growth(points, repeats),
        of="size of an operand",
        per="call",
        ours="fx.callback",
        jaxs="io_callback",
        plain="a copy",
        whole=True,
        in_bytes=True,
    )


@case("scale-operand", "a callback with an operand of 4 B to 256 MiB, and a copy of as much into warm memory")
def operand(repeats: int) -> Result:
    return _with_operands(SIZES, repeats)


@case("scale-operand-more", "the same up to 1 GiB, which takes 3 GiB of memory", "slow")
def larger_operand(repeats: int) -> Result:
    return _with_operands(LARGE, repeats)
