"""What a call and a record take, counted rather than timed, so that noise does not change it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._build import built
from benchmarks._cases import Result, case
from benchmarks._measure import Figure
from benchmarks._ratios import Ratio, cost, gain

CHILD = "benchmarks._counts_child"
HERE = Path(__file__).parent
VALGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")


@case("counts", "Python calls and allocations of a call, and of a step of a loop that prints", "quick")
def counts(repeats: int) -> Result:
    """Once, each in a process of its own. A call of a native function is no Python call."""
    found = _run_child("Calls", "")
    with built(HERE / "allocations.cc") as library:
        allocations = _run_child("Allocations", str(library), LD_PRELOAD=str(library), PYTHONMALLOC="malloc")
    for name, counted in allocations.items():
        found[name] |= counted
    return _result(found)


@case("instructions", "instructions of a call, and of a step of a loop that prints, until all is printed")
def instructions(repeats: int) -> Result:
    """Once, under callgrind. Those of all threads."""
    if shutil.which(VALGRIND[0]) is None or not Path("/usr/include/valgrind/callgrind.h").exists():
        print("Instructions are counted by callgrind, which is not installed: they are left out.", file=sys.stderr)
        return Result("call", [], {})
    with built(HERE / "instructions.cc") as library:
        return _result(_run_child("Instructions", str(library), VALGRIND))


def _result(found: dict[str, dict[str, float]]) -> Result:
    """Ratios where there is something to divide by: a plain call has no call of Python."""
    ratios: list[Ratio] = []
    for of in sorted({of for counted in found.values() for of in counted if "Python" not in of}):
        plain, ours, jaxs = (
            Figure((found[name][of],)) for name in ("call, jax.jit", "call with fx.print", "call with jax.debug.print")
        )
        ratios += [cost(f"{of}: fx.print / plain", ours, plain), gain(f"{of}: jax.debug.print / fx.print", jaxs, ours)]
    counts = {f"{of}, {name}": count for name, counted in found.items() for of, count in counted.items()}
    return Result("call or step", ratios, {}, dict(sorted(counts.items())))


def _run_child(
    counter: str, library: str, command: Sequence[str] = (), **environment: str
) -> dict[str, dict[str, float]]:
    """Counts in a fresh process, and returns what it reports."""
    paths = filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH")))
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, sys.executable, "-m", CHILD, counter, library],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", **environment},
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    return json.loads(done.stdout)
