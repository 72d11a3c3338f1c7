"""The command: `python -m tests.oracle`, with `--devices` for programs over several devices, with `--kernels` for
programs with Pallas kernels, with `--watch` for `fx.watch`, and with `--filters` for filters. With `--runs` each case
is recorded and read, too."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.oracle.campaign import CAMPAIGNS, Campaign, check_chunk, ends_if_stuck, run
from tests.oracle.observe import NotInJax


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description="Random programs against the oracle.")
    parser.add_argument("--programs", type=int, default=200, help="how many programs to run, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, metavar="K", help="run case K alone and show its source")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--devices", action="store_true", help="programs over several devices")
    which.add_argument("--kernels", action="store_true", help="programs with Pallas kernels")
    which.add_argument("--watch", action="store_true", help="programs with planted NaN, which `fx.watch` must find")
    which.add_argument("--filters", action="store_true", help="prints with filters, which other threads change")
    which.add_argument("--runner", choices=["library", "jax"], default="library", help="what to check")
    parser.add_argument("--runs", action="store_true", help="record each case, and have another process read it")
    parser.add_argument("--chunk", nargs=3, help=argparse.SUPPRESS)  # of a process of the campaign
    options = parser.parse_args(arguments)
    chosen = [name for name in ("devices", "kernels", "watch", "filters") if getattr(options, name)]
    name = chosen[0] if chosen else options.runner
    if options.runs:
        name = f"runs {chosen[0]}" if chosen else "runs"
        if name not in CAMPAIGNS or options.runner != "library":
            parser.error("--runs goes with programs of the library: alone, with --devices, or with --kernels")
    campaign = CAMPAIGNS[name]
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={campaign.devices}"
    if options.chunk is not None:
        start, stop, folder = options.chunk
        check_chunk(campaign, options.seed, range(int(start), int(stop)), Path(folder))
        return 0
    if options.only is not None:
        return _check_one(campaign, options.seed, options.only)
    started = time.monotonic()
    total = run(campaign, options.seed, options.programs, options.jobs)
    print(f"\n{total.report(time.monotonic() - started)}")
    for number, _ in sorted(total.failures):
        print("   ", campaign.again(options.seed, number))
    return 1 if total.failures else 0


def _check_one(campaign: Campaign, seed: int, number: int) -> int:
    case = campaign.case(seed, number)
    print(campaign.describe(case), flush=True)
    with ends_if_stuck():
        try:
            outcomes = campaign.checker()(case)
        except (AssertionError, NotInJax) as error:
            print(f"\n{type(error).__name__}: {error}")
            return int(isinstance(error, AssertionError))
    print(f"\nas promised: {sum(len(outcome.lines) for outcome in outcomes)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
