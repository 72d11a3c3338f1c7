"""What effects on several devices cost."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._cases import Result, case
from benchmarks._measure import Figure
from benchmarks._ratios import Ratio, aside, cost, gain

CHILD = "benchmarks._devices_child"
DEVICES = 4
COUNTS = (1, 2, 8)
CASES_OVER = ("dispatch", "pure", "loop", "sync", "queued")


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


@case("over-devices", f"{', '.join(CASES_OVER)} with programs over {', '.join(map(str, COUNTS))} devices", on_cpus=True)
def over_devices(repeats: int) -> Result:
    """Those cases in processes with so many devices, on several of which JAX's own effects have no order."""
    figures, ratios = {}, []
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "figures.json")
            _run("benchmarks", count, "--only", *CASES_OVER, "--repeats", repeats, "--json", file)
            cases = json.loads(file.read_text())["cases"]
        for name, found in cases.items():
            for what, of in found["figures"].items():
                figures[f"{name} on {count}: {what}"] = Figure((of["low"], of["median"], of["high"]), of["unit"])
            for ratio in found["ratios"]:
                bound = ratio["target"] and float(ratio["target"].split()[1])
                label, rounds = f"{name} on {count}: {ratio['label']}", tuple(ratio["rounds"])
                ratios.append(Ratio(label, rounds, ratio["better"], bound))
    return Result("unit of the case", ratios, figures)


@functools.cache
def run_child(devices: int, repeats: int, *measured: int | str) -> dict[str, dict[str, Figure]]:
    """Measures in a fresh process that has so many devices, and returns what it reports."""
    found = json.loads(_run(CHILD, devices, repeats, *measured))
    return {
        name: {of: Figure(tuple(figure["rounds"]), figure["unit"]) for of, figure in all_.items()}
        for name, all_ in found.items()
    }


def _run(module: str, devices: int, *options: object) -> str:
    """Runs a module in a fresh process that has so many devices. Returns what it prints."""
    command = [sys.executable, "-m", module, *map(str, options)]
    root = Path(__file__).resolve().parent.parent
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, cwd=root, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
