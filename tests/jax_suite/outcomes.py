"""A pytest plugin: writes what became of each test, as it becomes so, and leaves out those that have had their turn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "JAX_SUITE_OUTCOMES"
"""The variable of the environment that names the file: a line for each test that begins, and for each that is over."""

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    over = {test for test, (outcome, _) in read(_path()).items() if outcome != BEGAN}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in over])
    items[:] = [item for item in items if item.nodeid not in over]


def pytest_runtest_logstart(nodeid: str) -> None:
    write(_path(), nodeid, BEGAN)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        write(_path(), report.nodeid, report.outcome, lines[0][1:].strip() if report.failed and lines else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(_path(), report.nodeid, "not collected", str(report.longrepr).strip().rpartition("\n")[2])
