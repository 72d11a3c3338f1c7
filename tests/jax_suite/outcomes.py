"""A pytest plugin: writes what became of each test, as it becomes so, and leaves out those that have had their turn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "JAX_SUITE_OUTCOMES"
"""The variable of the environment that names the file: a line for each test that begins, and for each that is over."""


def _path() -> Path:
    return Path(os.environ[FILE])


def read(path: Path) -> dict[str, tuple[str, str]]:
    """By test: (outcome, the last line of its error). A test that has only begun ended its process."""
    outcomes: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        test, outcome, error = json.loads(line)
        outcomes[test] = outcome, error
    return outcomes


def _write(test: str, outcome: str, error: str = "") -> None:
    with _path().open("a") as file:
        file.write(json.dumps([test, outcome, error]) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    over = read(_path())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in over])
    items[:] = [item for item in items if item.nodeid not in over]


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(nodeid, "ended its process")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        _write(report.nodeid, report.outcome, lines[0][1:].strip() if report.failed and lines else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "not collected", str(report.longrepr).strip().rpartition("\n")[2])
