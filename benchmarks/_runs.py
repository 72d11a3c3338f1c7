"""What it costs to record a run, and to read it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._cases import Result, case
from benchmarks._measure import interleave, per, timed
from benchmarks._output import stdout_in_file
from benchmarks._ratios import cost

STEPS = 100_000


@case("runs", f"prints in fori_loop({STEPS:,}) while a run file is written", on_cpus=True)
def runs(repeats: int) -> Result:
    """Until the barrier returns. What reading takes is of as many records."""
    f = fx.jit(lambda x: jax.lax.fori_loop(0, STEPS, lambda i, x: (fx.print("{} {}", i, x), x + 1)[1], x))
    row = jnp.arange(16.0)
    wide = fx.jit(lambda x: jax.lax.fori_loop(0, STEPS // 10, lambda i, x: (fx.print("{}", x), x + 1)[1], x))

    def measuring(program: Callable[[Any], Any], x: Any, path: Path | None) -> Callable[[], float]:
        def run() -> None:
            program(x).block_until_ready()
            fx.effects_barrier()

        def measure() -> float:
            if path is None:
                return timed(run)
            with fx.record(path, max_bytes=1 << 26):
                return timed(run)

        return measure

    with tempfile.TemporaryDirectory() as folder, stdout_in_file():
        path, of_arrays = Path(folder, "run.fx"), Path(folder, "arrays.fx")
        figures = interleave(
            {
                "printed": measuring(f, jnp.float32(0), None),
                "printed and recorded": measuring(f, jnp.float32(0), path),
                "arrays printed": measuring(wide, row, None),
                "arrays printed and recorded": measuring(wide, row, of_arrays),
                "read": lambda: _read(path),
            },
            repeats,
        )
    ratios = [
        cost("recorded / printed", figures["printed and recorded"], figures["printed"], 1.2),
        cost("recorded / printed, arrays", figures["arrays printed and recorded"], figures["arrays printed"], 1.2),
    ]
    wide_figures = {name: figures.pop(name) for name in [*figures] if name.startswith("arrays")}
    return Result("step", ratios, {**per(figures, STEPS), **per(wide_figures, STEPS // 10)})


def _read(path: Path) -> float:
    begin = time.perf_counter()
    run = fx.runs.read(path)
    assert len(run) == STEPS
    return time.perf_counter() - begin
