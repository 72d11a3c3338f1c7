"""A plugin for pytest: what each test comes to is written into a file at once, so that a run that is killed loses none
of it, and another run leaves out what has passed.

`python -m pytest -p tests.gpu.results --results FILE [--go-on] ...`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="where to write what each test comes to")
    parser.addoption("--go-on", action="store_true", help="leave out the tests that have passed there")


def pytest_configure(config: Any) -> None:
    if config.option.results is not None:
        config.pluginmanager.register(_Results(config))


class _Results:
    """Lines of an outcome, seconds and a test's name, each with the error below it if there is one."""

    def __init__(self, config: Any) -> None:
        self.file: Path = config.option.results
        self.is_worker = hasattr(config, "workerinput")  # of pytest-xdist: then another process writes
        self.passed = self._read() if config.option.go_on and self.file.exists() else set()
        if not config.option.go_on and not self.is_worker:
            self.file.unlink(missing_ok=True)

    def _read(self) -> set[str]:
        lines = (line.split(maxsplit=2) for line in self.file.read_text().splitlines() if not line.startswith(" "))
        last = {name: outcome for outcome, _, name in lines}
        return {name for name, outcome in last.items() if outcome == "passed"}

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        left_out = [item for item in items if item.nodeid in self.passed]
        items[:] = [item for item in items if item.nodeid not in self.passed]
        config.hook.pytest_deselected(items=left_out)

    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("begins", 0, nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self._write(report.outcome, report.duration, report.nodeid, "" if report.passed else report.longreprtext)

    def _write(self, outcome: str, seconds: float, name: str, error: str = "") -> None:
        if self.is_worker:
            return
        with self.file.open("a") as file:
            file.write("\n".join([f"{outcome} {seconds:.2f} {name}", *(f"    {line}" for line in error.splitlines())]))
            file.write("\n")
