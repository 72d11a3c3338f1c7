"""The command: `python -m tests.jax_suite --jax-tests DIR [FILE ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.jax_suite.compare import Comparison, compare

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
    parser.add_argument("files", nargs="*", metavar="FILE", help="names of files in it; without any, all `*_test.py`")
    parser.add_argument("-k", dest="only", default="", help="of each file only these tests, as pytest's `-k`")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a file, in each of the two runs")
    parser.add_argument("--at-least", type=float, default=99.7, help="the percentage with which the command succeeds")
    options = parser.parse_args(arguments)
    folder = options.jax_tests.resolve()
    paths = [folder / name for name in options.files] or sorted(folder.glob("*_test.py"))
    if missing := [path for path in paths or [folder / "*_test.py"] if not path.is_file()]:
        parser.error(MSG_NO_TESTS.format(path=missing[0]))
    total = Comparison()
    for path in paths:
        one = compare(path, options.timeout, Comparison(), ["-k", options.only] if options.only else [])
        print(f"{path.name}: {one}", flush=True)
        total.plain += one.plain
        total.differences += one.differences
        total.gained += one.gained
    print(f"\n{total}")
    return 0 if total.plain and total.percent >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
