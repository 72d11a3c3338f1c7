"""A pytest plugin: writes what became of each test, as it becomes so, and leaves out those that have had their turn."""

from __future__ import annotations

import collections
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

FILE = "JAX_SUITE_OUTCOMES"
"""The variable of the environment that names the file: a line for each test that begins, and for each that is over."""

OF_EACH = "JAX_SUITE_OF_EACH"
"""The variable that says how many are run of tests that differ in their parameters only."""

BEGAN = "began"
_WORSE = ("failed", "skipped", "passed")
"""A test has a report for each of its subtests: the worst of them counts."""


def _path() -> Path:
    return Path(os.environ[FILE])


def read(path: Path) -> dict[str, tuple[str, str]]:
    """By test: (outcome, the first line of its error). `BEGAN` is one that has not come to its end, or has not yet."""
    outcomes: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            test, outcome, error = json.loads(line)
        except ValueError:
            continue  # cut off when the command was interrupted: the test has its turn again
        before = outcomes.get(test, (BEGAN, ""))[0]
        if outcome not in _WORSE or before not in _WORSE or _WORSE.index(outcome) < _WORSE.index(before):
            outcomes[test] = outcome, error
    return outcomes


def write(path: Path, test: str, outcome: str, error: str = "") -> None:
    """Adds a line."""
    with path.open("a") as file:
        file.write(json.dumps([test, outcome, error]) + "\n")


def forget(path: Path, tests: set[str]) -> None:
    """These tests have their turn again."""
    kept = {test: what for test, what in read(path).items() if test not in tests}
    path.write_text("".join(json.dumps([test, *what]) + "\n" for test, what in kept.items()))


_PARAMETERS = re.compile(r"(\d+|_?[^_:(]*=.*|[(\[].*)$")


def some_of_each(tests: Iterable[str], count: int) -> set[str]:
    """The first `count` of those tests whose names differ in parameters only, which JAX writes behind them."""
    seen: collections.Counter[str] = collections.Counter()
    chosen = set()
    for test in tests:
        seen[name := _PARAMETERS.sub("", test)] += 1
        if seen[name] <= count:
            chosen.add(test)
    return chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = {item.nodeid for item in items}
    if of_each := int(os.environ.get(OF_EACH, "0")):
        chosen = some_of_each([item.nodeid for item in items], of_each)
    chosen -= {test for test, (outcome, _) in read(_path()).items() if outcome != BEGAN}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


def pytest_runtest_logstart(nodeid: str) -> None:
    write(_path(), nodeid, BEGAN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        write(_path(), report.nodeid, report.outcome, lines[0][1:].strip() if report.failed and lines else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(_path(), report.nodeid, "not collected", str(report.longrepr).strip().rpartition("\n")[2])
