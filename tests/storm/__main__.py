"""The command: `python -m tests.storm`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.storm.rounds import run

DEVICES = 8
"""How many the programs of random mixtures run over."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description="Ctrl-C at random moments.")
    parser.add_argument("--interrupts", type=int, default=2000, help="how many, at least")
    parser.add_argument("--asynchronous", type=int, default=0, help="so many runs of random mixtures, and no Ctrl-C")
    parser.add_argument("--healthy", type=int, default=0, help="so many programs that hang nowhere, and no Ctrl-C")
    parser.add_argument("--devices", type=int, default=1, help="over how many CPU devices programs run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--run", choices=["effects", "control", "asynchronous", "healthy"], help=argparse.SUPPRESS
    )  # of a process of the storm
    options = parser.parse_args(arguments)
    if options.run == "asynchronous":
        from tests.storm import asynchronous

        asynchronous.run(options.asynchronous, options.seed)
        return 0
    if options.run == "healthy":
        from tests.storm import healthy

        healthy.run(options.healthy, options.seed)
        return 0
    if options.run is not None:
        run(options.run == "control", options.devices, options.interrupts, options.seed)
        return 0
    if options.asynchronous:
        return 0 if _mixtures(options) else 1
    if options.healthy:
        far = {"programs": 0}
        code, seconds = _run_process("healthy", options, DEVICES, far)
        fared = "nothing was ended or said" if code == 0 else f"broke (exit code {code})"
        print(f"healthy programs: {far['programs']}, {fared}, {seconds:.0f} s", flush=True)
        return code
    passed = _storm("effects", options)
    if options.devices == 1:
        return 0 if passed else 1
    control = _storm("control", options)
    if not control:
        print("Plain JAX does not survive the storm either: what is seen above may be its own.")
    return 0 if passed else 2 if not control else 1


def _storm(kind: str, options: argparse.Namespace) -> bool:
    """Whether a process survived it. Says how it fared."""
    far = {"interrupts": 0, "operations": 0, "returned": 0}
    code, seconds = _run_process(kind, options, options.devices, far)
    what = "plain JAX without effects" if kind == "control" else "programs with effects"
    fared = "survived" if code == 0 else f"broke (exit code {code}) after"
    print(
        f"{what}, {options.devices} device(s): {fared} {far['interrupts']} interrupts in {far['operations']} "
        f"operations, of which {far['returned']} returned, {seconds:.0f} s",
        flush=True,
    )
    return code == 0


def _mixtures(options: argparse.Namespace) -> bool:
    """Whether all runs of random mixtures were as they are read. Says how they fared."""
    far = {"runs": 0, "calls": 0, "failed": 0, "lines": 0, "held": 0}
    code, seconds = _run_process("asynchronous", options, DEVICES, far)
    fared = "as read" if code == 0 else f"the next one broke (exit code {code})"
    print(
        f"random mixtures, {DEVICES} devices: {far['runs']} runs, {fared}: {far['calls']} calls, of which "
        f"{far['failed']} failed, {far['lines']} lines, {far['held']} handlers that did not answer, {seconds:.0f} s",
        flush=True,
    )
    return code == 0


def _run_process(kind: str, options: argparse.Namespace, devices: int, far: dict[str, int]) -> tuple[int, float]:
    """Runs a process of a storm, and follows in `far` how far it is. Returns its exit code and the seconds it took."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.storm", "--run", kind]
    for name in ("interrupts", "asynchronous", "healthy", "devices", "seed"):
        command += [f"--{name}", str(getattr(options, name))]
    began = time.monotonic()
    environment = {**os.environ, "XLA_FLAGS": flags}
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        for line in process.stdout or ():
            far.update(json.loads(line))
    return process.returncode, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
