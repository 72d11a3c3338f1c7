"""`python -m benchmarks`: runs the cases and prints their tables."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console

from benchmarks._cases import CASES
from benchmarks._machine import describe_machine
from benchmarks._report import show, to_json

MODULES = (
    "_dispatch",
    "_loop",
    "_kernels",
    "_callbacks",
    "_custom_call",
    "_asynchronous",
    "_overlap",
    "_progress",
    "_devices",
    "_compile",
    "_memory",
)
"""Where cases are, in the order in which they run. A new module is named here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what was asked for. Returns 0: a missed target is shown, not failed."""
    for module in MODULES:
        importlib.import_module(f"benchmarks.{module}")
    options = _parse(argv)
    if options.platform:
        jax.config.update("jax_platforms", options.platform)
    names = options.only or [name for name, case in CASES.items() if options.all or not case.slow]
    progress = Console(stderr=True)
    results = {}
    for name in names:
        progress.print(f"[dim]{name}: {CASES[name].what}[/]", highlight=False)
        results[name] = CASES[name].run(options.repeats)
    machine = describe_machine()
    show(results, machine, options.repeats, Console(width=None if sys.stdout.isatty() else 120))
    if options.json:
        options.json.write_text(json.dumps(to_json(results, machine, options.repeats), indent=2) + "\n")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<14}{case.what}{' (slow)' if case.slow else ''}" for name, case in CASES.items())
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measures side by side with JAX, in one process, in interleaved repeats.",
        epilog=f"cases:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--platform", help="what `jax_platforms` is set to, such as cpu; by default JAX chooses")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(CASES), help="only these cases")
    parser.add_argument("--all", action="store_true", help="the slow cases too")
    parser.add_argument("--repeats", type=_positive, default=11, metavar="N", help="how many repeats (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
