"""The command: `python -m tests.mutants`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.helpers import ROOT
from tests.mutants.at_random import DEFAULT, choose, run_at_random
from tests.mutants.command import chosen, run
from tests.mutants.slips import SLIPS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Deliberate slips against the tests.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a slip, or those of a part")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try side by side")
    parser.add_argument("--list", action="store_true", help="name the slips and what each gets wrong, and try none")
    parser.add_argument("--random", type=int, metavar="N", help="delete or negate so many random lines instead")
    parser.add_argument("--seed", type=int, default=0, help="with --random: which lines")
    parser.add_argument(
        "--in",
        action="append",
        dest="paths",
        metavar="PATH",
        help="with --random: a folder, FILE, or FILE:LINE",
    )
    parser.add_argument("--seconds", type=float, default=120, help="with --random: how long the tests of one may take")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C does: see `run`
    if options.random is not None:
        if not hasattr(sys, "monitoring"):
            parser.error("--random needs Python 3.12 or newer, which can say cheaply which lines a test runs")
        paths = options.paths or DEFAULT
        if options.list:
            for slip, _ in choose(ROOT, paths, options.random, options.seed):
                print(f"{slip.name}: {slip.wrong}")
            return 0
        return run_at_random(paths, options.random, options.seed, options.seconds, options.jobs)
    slips = chosen(SLIPS, options.only)
    if unknown := [name for name in options.only if not chosen(SLIPS, [name])]:
        parser.error(f"no slip and no part is named {', '.join(unknown)}")
    if options.list:
        for slip in slips:
            print(f"{slip.name}: {slip.wrong}")
        return 0
    return run(slips, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
