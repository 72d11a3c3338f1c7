"""The command: `python -m tests.jax_suite --jax-tests DIR [FILE ...]`."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import ROOT
from tests.jax_suite.chosen import CHOSEN
from tests.jax_suite.compare import Comparison, Runs
from tests.jax_suite.table import table

DOCUMENT = ROOT / "docs" / "jax-tests.md"

MSG_NO_TESTS = (
    "There are no tests at {path}. The command runs the tests of a checkout of JAX, of the version that is installed. "
    "Name its folder `tests/`."
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.jax_suite",
        description="Runs JAX's own tests with `fx.jit` in the place of `jax.jit` beside a plain run: what differs.",
    )
    parser.add_argument("--jax-tests", type=Path, required=True, metavar="DIR", help="`tests/` of a checkout")
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="names of files in it; without any, those of `chosen.py` that it has"
    )
    parser.add_argument("--all", action="store_true", help="all `*_test.py`")
    parser.add_argument("-k", dest="only", default="", help="of each file only these tests, as pytest's `-k`")
    parser.add_argument(
        "--of-each", type=int, default=0, metavar="N", help="at most N of tests that differ in parameters only; 0: all"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="compile each `pl.pallas_call` of a test by itself, in both runs"
    )
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="keep outcomes there, and go on with what is kept there already"
    )
    parser.add_argument("--again", action="store_true", help="what differed has its turn again")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a test")
    parser.add_argument(
        "--stop-after", type=float, default=float("inf"), metavar="SECONDS", help="0: say only what is kept"
    )
    parser.add_argument("--at-least", type=float, default=99.7, help="the percentage with which the command succeeds")
    parser.add_argument("--table", action="store_true", help="at last, a table of all versions in `--results`")
    options = parser.parse_args(arguments)
    folder = options.jax_tests.resolve()
    paths = [folder / name for name in options.files]
    if not paths:
        names = {path.name for path in folder.glob("*_test.py")}
        paths = [folder / name for name in sorted(names if options.all else names.intersection(CHOSEN))]
    if missing := [path for path in paths or [folder / "*_test.py"] if not path.is_file()]:
        parser.error(MSG_NO_TESTS.format(path=missing[0]))
    with tempfile.TemporaryDirectory() as temporary:
        results = (options.results or Path(temporary)).resolve() / ("kernels" if options.kernels else "")
        results /= f"jax-{importlib.metadata.version('jax')}"
        results.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + options.stop_after
        runs = Runs(results, options.only, options.of_each, options.timeout, deadline, options.kernels)
        status = _report(runs, paths, options.again, options.at_least)
        if options.table:
            print(f"\n{table(runs)}")
        return status


def _report(runs: Runs, paths: Sequence[Path], again: bool, at_least: float) -> int:
    total = Comparison()
    for path in paths:
        one = runs.compare(path, again)
        print(f"{path.name}{' (not over)' if one.unfinished else ''}: {one}", flush=True)
        total.add(one)
    print(f"\n{total}")
    reasons = DOCUMENT.read_text() if DOCUMENT.exists() else ""
    if unexplained := [difference for difference in total.differences if f"`{difference.name}`" not in reasons]:
        print(f"\n{len(unexplained)} without a reason in docs/{DOCUMENT.name}:")
        print("\n".join(f"  {difference.test}" for difference in unexplained))
    if total.unfinished:
        print(f"\n{total.unfinished} files have tests to come")
    return 0 if total.plain and total.percent >= at_least and not total.unfinished else 1


if __name__ == "__main__":
    sys.exit(main())
