"""The command `python -m tests.gpu.simulated`: runs Python with what stands behind its own options, on a machine with
simulated GPUs."""

from __future__ import annotations

import argparse
import os
import sys

from tests.gpu.simulated.environment import NoPlugin, environment


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.simulated",
        usage="%(prog)s [--gpus N] script.py ... | -m module ...",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("--gpus", type=int, default=1, help="how many there are (1)")
    options, arguments = parser.parse_known_args()
    given = os.environ.get("XLA_FLAGS", "")
    try:
        variables = environment(options.gpus)
    except NoPlugin as error:
        sys.exit(str(error))
    variables["XLA_FLAGS"] += f" {given}"
    os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, **variables})


main()
