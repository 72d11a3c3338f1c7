"""Whether a program that prints for long holds more than the ring's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks._cases import Result, case
from benchmarks._measure import Figure
from benchmarks._ratios import Ratio

FEW, MANY = 1_000, 10_000_000
ALLOWED_RINGS = 2  # the ring; and at its default size about as much again: text in the drain, and the allocator's slack
CHILD = "benchmarks._memory_child"


@case("memory", f"{MANY:,} records to /dev/null: growth of the peak of memory against {FEW:,} records", "slow")
def memory(repeats: int) -> Result:
    """Each in a process of its own. Repeated once, for it takes long and the peak varies little."""
    few, many = _run_child(FEW), _run_child(MANY)
    growth, ring = many["peak_bytes"] - few["peak_bytes"], many["ring_bytes"]

    def one(value: float, unit: str) -> Figure:
        return Figure((value,), unit)

    figures = {
        f"peak, {FEW:,} records": one(few["peak_bytes"], "B"),
        f"peak, {MANY:,} records": one(many["peak_bytes"], "B"),
        "growth": one(growth, "B"),
        "the ring": one(ring, "B"),
        "bytes published": one(many["published_bytes"], "B"),
        "time": one(many["seconds"], "s"),
    }
    ratios = [
        Ratio("growth / ring", (growth / ring,), "less", ALLOWED_RINGS),
        Ratio("growth / bytes published", (growth / many["published_bytes"],), "less"),
    ]
    return Result("process", ratios, figures)


def _run_child(records: int) -> dict[str, Any]:
    """Prints so many records in a fresh process, and returns what it reports of itself."""
    command = [sys.executable, "-m", CHILD, str(records)]
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
