"""What a print in a loop costs with small and with large rings."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._cases import Result, case
from benchmarks._growth import measure_growth, scaling

CHILD = "benchmarks._scale_ring_child"
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)


@case("scale-ring", "a print in fori_loop(10,000) with a ring of 4 KiB to 16 MiB, until all is in a file")
def ring(repeats: int) -> Result:
    """A process for each size, since a ring keeps its size; the processes measure in turn."""
    points: dict[tuple[str, int], Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        for name, sizes in {"fx.print": SIZES, "plain": SIZES[:1], "jax.debug.print": SIZES[:1]}.items():
            for size in sizes:
                points[name, size] = stack.enter_context(_child(name, size))
        figures = measure_growth(points, repeats)
    without_ring = {name: figures.pop((name, SIZES[0])) for name in ("plain", "jax.debug.print")}
    return scaling(
        figures,
        of="size of the ring",
        per="step",
        ours="fx.print",
        jaxs="jax.debug.print",
        plain="plain",
        same=without_ring,
        in_bytes=True,
    )


@contextlib.contextmanager
def _child(name: str, ring_bytes: int) -> Iterator[Callable[[], float]]:
    """A process that measures whenever the function is called that this gives."""
    child = subprocess.Popen(
        [sys.executable, "-m", CHILD, name],
        cwd=Path(__file__).resolve().parent.parent,
        env={**os.environ, "EFFECTS_RING_BYTES": str(ring_bytes), "JAX_PLATFORMS": "cpu"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None and child.stdout is not None
    stdin, stdout = child.stdin, child.stdout

    def measure() -> float:
        stdin.write("measure\n")
        stdin.flush()
        return float(stdout.readline())

    with child:
        yield measure
        stdin.close()
