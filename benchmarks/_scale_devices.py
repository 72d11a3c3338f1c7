"""What a print costs on few and on many devices."""

from __future__ import annotations

from benchmarks._cases import Result, case
from benchmarks._devices import run_child
from benchmarks._growth import scaling

COUNTS = (1, 2, 4, 8)


@case(
    "scale-devices",
    f"{COUNTS[0]} to {COUNTS[-1]} virtual devices, a print on each per call of a `shard_map`",
    on_cpus=True,
)
def devices(repeats: int) -> Result:
    """The time of a call, for one of its devices."""
    found = run_child(COUNTS[-1], repeats, *COUNTS)["scale"]
    figures = {}
    for key, figure in found.items():
        name, _, count = key.rpartition(" ")
        figures[name, int(count)] = figure.per(int(count))
    jaxs = "jax.debug.print, unordered"
    return scaling(figures, of="devices", per="device", ours="fx.print", jaxs=jaxs, plain="plain")
