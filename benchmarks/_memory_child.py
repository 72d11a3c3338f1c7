"""A process that prints many records and says how much memory it took: `python -m benchmarks._memory_child RECORDS`."""

from __future__ import annotations

import json
import os
import resource
import sys
import time

import jax

import effects as fx


def main(records: int) -> None:
    """Prints the records to /dev/null, then one line of JSON to where standard output was."""

    @fx.jit
    def program(n: int) -> None:
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("record {}", i), None)

    report, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    begin = time.perf_counter()
    program(records)
    fx.effects_barrier()
    seconds = time.perf_counter() - begin
    stats = fx.stats()
    assert stats["released"] == records, stats
    found = {
        "records": records,
        "seconds": seconds,
        "peak_bytes": _peak_bytes(),
        "ring_bytes": fx.config.ring_bytes,
        "published_bytes": stats["bytes"],
        "high_water_bytes": stats["high_water"],
    }
    json.dump(found, report)


def _peak_bytes() -> int:
    """The most memory that this process has had resident."""
    try:
        with open("/proc/self/status") as status:
            [line] = [line for line in status if line.startswith("VmHWM:")]
            return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        # Not on Linux. There, this number would be inherited from the parent process, and so say nothing.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main(int(sys.argv[1]))
