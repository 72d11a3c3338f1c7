"""What effects on several devices cost."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks._cases import Result, case
from benchmarks._measure import Figure
from benchmarks._ratios import aside, cost, gain

CHILD = "benchmarks._devices_child"
DEVICES = 4


@case("devices", f"{DEVICES} virtual devices, a print on each per call of a `shard_map`", on_cpus=True)
def devices(repeats: int) -> Result:
    """In a process of its own, since devices are counted when JAX starts."""
    return _against_plain(run_child(DEVICES, repeats)["together"])


@case("device-arrays", f"the same with an array of 4 floats on each of the {DEVICES}", on_cpus=True)
def device_arrays(repeats: int) -> Result:
    """What is shown is made by native code, without Python's lock."""
    return _against_plain(run_child(DEVICES, repeats)["arrays"])


def _against_plain(figures: dict[str, Figure]) -> Result:
    plain, ours, jaxs = figures.values()
    ratios = [
        cost("fx.print / plain", ours, plain, at_most=1.5),
        aside("jax.debug.print / plain", jaxs, plain),
        gain("jax.debug.print / fx.print", jaxs, ours),
    ]
    return Result("call", ratios, figures)


@case("alternating", "a print on one device per call: another device each time, against one device", on_cpus=True)
def alternating(repeats: int) -> Result:
    """The order goes from device to device, which costs nothing."""
    figures = run_child(DEVICES, repeats)["in turn"]
    plain, plain_other, one, another = figures.values()
    ratios = [
        cost("fx.print: another each time / one device", another, one, at_most=1.1),
        aside("plain: another each time / one device", plain_other, plain),
    ]
    return Result("call", ratios, figures)


@case("dispatch-devices", "a call over 1, 2 and 8 devices without effects and with a print", on_cpus=True)
def dispatch_devices(repeats: int) -> Result:
    """What the caller waits for; the barrier is outside of the measure."""
    figures: dict[str, Figure] = {}
    ratios = []
    for count in (1, 2, 8):
        found = run_child(count, repeats, "dispatch")["dispatch"]
        plain, pure, prints = found.values()
        figures |= {f"{name}, {count} devices": figure for name, figure in found.items()}
        ratios += [
            cost(f"{count} devices: fx.jit / jax.jit", pure, plain, at_most=1.15),
            cost(f"{count} devices: fx.print / jax.jit", prints, plain, at_most=1.8),
        ]
    return Result("call", ratios, figures)


@functools.cache
def run_child(devices: int, repeats: int, *measured: int | str) -> dict[str, dict[str, Figure]]:
    """Measures in a fresh process that has so many devices, and returns what it reports."""
    command = [sys.executable, "-m", CHILD, str(repeats), *map(str, measured)]
    root = Path(__file__).resolve().parent.parent
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=root, env=env, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return {
        name: {of: Figure(tuple(figure["rounds"]), figure["unit"]) for of, figure in all_.items()}
        for name, all_ in found.items()
    }
