"""`python -m benchmarks`: runs the cases, prints their tables, and compares and draws what they found."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from benchmarks import _gate
from benchmarks._cases import CASES
from benchmarks._machine import describe_machine
from benchmarks._report import show, to_json

MODULES = (
    "_dispatch",
    "_loop",
    "_filters",
    "_runs",
    "_watch",
    "_kernels",
    "_callbacks",
    "_custom_call",
    "_asynchronous",
    "_overlap",
    "_progress",
    "_devices",
    "_compile",
    "_import",
    "_counts",
    "_scale_prints",
    "_scale_operand",
    "_scale_devices",
    "_scale_ring",
    "_memory",
)
"""Where cases are, in the order in which they run. A new module is named here."""

REPEATS, QUICK_REPEATS = 11, 7


def main(argv: Sequence[str] | None = None) -> int:
    """Does what was asked for. Returns 1 if a case fails, or if there is a gate and something is worse than the
    baseline; else 0, since a missed target is shown, not failed."""
    for module in MODULES:
        importlib.import_module(f"benchmarks.{module}")
    options = _parse(argv)
    if options.platform:
        # JAX's own callbacks need a CPU beside it.
        jax.config.update("jax_platforms", ",".join(dict.fromkeys([options.platform, "cpu"])))
    failed: list[str] = []
    runs = [json.loads(file.read_text()) for file in options.read] if options.read else [_measure(options, failed)]
    console = Console(width=None if sys.stdout.isatty() else 120)
    for run in runs:
        show(run, console)
    if options.plot:
        from benchmarks._plot import draw

        for file in draw(runs, options.plot):
            console.print(f"Drawn: {file}", highlight=False)
    if failed:
        console.print(f"Failed, and not in the tables: {', '.join(failed)}. What is above says why.", highlight=False)
    worse = _compare(options.gate, runs[-1], console) if options.gate else 0
    return 1 if failed else worse


def _measure(options: argparse.Namespace, failed: list[str]) -> dict[str, Any]:
    """The figures. What fails is shown and named in `failed`, and the other cases are measured all the same."""
    paces = {"quick"} if options.quick else {"quick", "usual", "slow"} if options.all else {"quick", "usual"}
    names = options.only or [name for name, case in CASES.items() if case.pace in paces]
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    progress = Console(stderr=True)
    results: dict[str, Any] = {}
    run = to_json(results, describe_machine(), repeats)
    for name in names:
        progress.print(f"[dim]{name}: {CASES[name].what}[/]", highlight=False)
        if CASES[name].on_cpus and jax.default_backend() != "cpu":
            progress.print("[dim]  left out: it can be measured on CPUs alone[/]", highlight=False)
            continue
        try:
            results[name] = CASES[name].run(repeats)
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
            continue
        for ratio in results[name].ratios:  # now, since a later case may end the process
            progress.print(f"  {ratio.label}: {ratio.value:.3g}", highlight=False, markup=False)
        run = to_json(results, describe_machine(), repeats)
        if options.json:
            options.json.write_text(json.dumps(run, indent=1) + "\n")
    return run


def _compare(file: Path, run: dict[str, Any], console: Console) -> int:
    if not file.exists():
        console.print(f"There is no baseline {file}, so nothing is compared. Write one with `--json {file}`.")
        return 0
    baseline = json.loads(file.read_text())
    verdicts = _gate.judge(baseline, run)
    _gate.show(verdicts, baseline, run, console)
    return int(any(verdict.outcome == "worse" for verdict in verdicts))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "\n".join(
        f"  {name:<16}{case.what}{'' if case.pace == 'usual' else f' ({case.pace})'}" for name, case in CASES.items()
    )
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measures side by side with JAX, in one process, in interleaved repeats.",
        epilog=f"cases:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--platform", help="where programs run, such as cpu; by default JAX chooses")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(CASES), help="only these cases")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help=f"the quick cases, with {QUICK_REPEATS} repeats: a minute")
    extent.add_argument("--all", action="store_true", help="the slow cases too")
    parser.add_argument("--repeats", type=_positive, metavar="N", help=f"how many repeats ({REPEATS})")
    parser.add_argument(
        "--read", type=Path, nargs="+", metavar="FILE", help="measure nothing: take what `--json` has written"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the ratios and curves into this folder")
    parser.add_argument(
        "--gate",
        type=Path,
        nargs="?",
        const=_gate.committed_baseline(),
        metavar="FILE",
        help="compare with a baseline, by default the committed one for this version of JAX; exit with 1 if worse",
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
