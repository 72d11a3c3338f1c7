"""The command: `python -m tests.mutants`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from tests.mutants.command import chosen, run
from tests.mutants.slips import SLIPS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Deliberate slips against the tests.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a slip, or those of a part")
    parser.add_argument("--jobs", type=int, default=1, help="how many to try side by side")
    parser.add_argument("--list", action="store_true", help="name the slips and what each gets wrong, and try none")
    options = parser.parse_args(arguments)
    slips = chosen(SLIPS, options.only)
    if unknown := [name for name in options.only if not chosen(SLIPS, [name])]:
        parser.error(f"no slip and no part is named {', '.join(unknown)}")
    if options.list:
        for slip in slips:
            print(f"{slip.name}: {slip.wrong}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # as Ctrl-C does: see `run`
    return run(slips, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
