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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description="Ctrl-C at random moments.")
    parser.add_argument("--interrupts", type=int, default=2000, help="how many, at least")
    parser.add_argument("--devices", type=int, default=1, help="over how many CPU devices programs run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", choices=["effects", "control"], help=argparse.SUPPRESS)  # of a process of the storm
    options = parser.parse_args(arguments)
    if options.run is not None:
        run(options.run == "control", options.devices, options.interrupts, options.seed)
        return 0
    passed = _storm("effects", options)
    if options.devices == 1:
        return 0 if passed else 1
    control = _storm("control", options)
    if not control:
        print("Plain JAX does not survive the storm either: what is seen above may be its own.")
    return 0 if passed else 2 if not control else 1


def _storm(kind: str, options: argparse.Namespace) -> bool:
    """Whether a process survived it. Says how it fared."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={options.devices}"
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.storm", "--run", kind]
    for name in ("interrupts", "devices", "seed"):
        command += [f"--{name}", str(getattr(options, name))]
    began = time.monotonic()
    root, far = Path(__file__).parents[2], {"interrupts": 0, "operations": 0, "returned": 0}
    environment = {**os.environ, "XLA_FLAGS": flags}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        for line in process.stdout or ():
            far = json.loads(line)
    code = process.returncode
    what = "plain JAX without effects" if kind == "control" else "programs with effects"
    fared = "survived" if code == 0 else f"broke (exit code {code}) after"
    print(
        f"{what}, {options.devices} device(s): {fared} {far['interrupts']} interrupts in {far['operations']} "
        f"operations, of which {far['returned']} returned, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
