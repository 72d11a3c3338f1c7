"""The command `python -m tests.gpu.simulated`: runs Python with what stands behind its own options, on a machine with
simulated GPUs."""

from __future__ import annotations

import argparse
import os
import sys

from tests.gpu.simulated.environment import NoPlugin, environment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.simulated", description=__doc__)
    parser.add_argument("--gpus", type=int, default=1, help="how many there are (1)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="Python's own, as `-m pytest tests/gpu`")
    options = parser.parse_args()
    given = os.environ.get("XLA_FLAGS", "")
    try:
        variables = environment(options.gpus)
    except NoPlugin as error:
        sys.exit(str(error))
    variables["XLA_FLAGS"] += f" {given}"
    os.execve(sys.executable, [sys.executable, *options.arguments], {**os.environ, **variables})


main()
