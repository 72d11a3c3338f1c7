"""Runs files of tests plainly and with `fx.jit`, and says what differs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import ROOT
from tests.jax_suite import outcomes

_MOST_ENDS = 20
"""How many tests of one file may end their process, before the rest of the file is given up."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that passes plainly, and not with `fx.jit`."""

    test: str
    outcome: str
    error: str

    def __str__(self) -> str:
        return f"{self.test}: {self.outcome}{': ' if self.error else ''}{self.error}"


@dataclasses.dataclass
class Comparison:
    """What became of tests."""

    plain: int = 0  # tests that pass plainly
    differences: list[Difference] = dataclasses.field(default_factory=list)
    gained: list[str] = dataclasses.field(default_factory=list)  # pass with `fx.jit` only

    @property
    def percent(self) -> float:
        return 100.0 * (self.plain - len(self.differences)) / self.plain if self.plain else 100.0

    def __str__(self) -> str:
        passed = self.plain - len(self.differences)
        lines = [f"{passed} of {self.plain} tests that pass with `jax.jit` pass with `fx.jit` ({self.percent:.2f} %)"]
        lines += [f"  {difference}" for difference in self.differences]
        lines += [f"  {test}: passes with `fx.jit` only" for test in self.gained]
        return "\n".join(lines)


def run_file(path: Path, in_place: bool, timeout: float, arguments: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """What becomes of each test of a file, in processes of their own: (outcome, error)."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "outcomes")
        plugins = ["tests.jax_suite.outcomes", *(["tests.jax_suite.in_place"] if in_place else [])]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:effects_pytest"]
        command += [option for plugin in plugins for option in ("-p", plugin)]
        path_variable = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path_variable, outcomes.FILE: str(written)}
        for _ in range(_MOST_ENDS):
            before = len(outcomes.read(written))
            try:
                done = subprocess.run(
                    [*command, *arguments, str(path)],
                    cwd=path.parent,
                    env=env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=timeout,
                    check=False,
                )
                if done.returncode in range(6):
                    break  # pytest itself came to an end
            except subprocess.TimeoutExpired:
                pass
            if len(outcomes.read(written)) == before:
                break
        return outcomes.read(written)


def compare(path: Path, timeout: float, into: Comparison, arguments: Sequence[str] = ()) -> Comparison:
    """What differs in a file of tests, beside what has been compared before."""
    plain = run_file(path, False, timeout, arguments)
    ours = run_file(path, True, timeout, arguments)
    for test, (outcome, _) in plain.items():
        now, error = ours.get(test, ("not run", ""))
        if outcome == "passed":
            into.plain += 1
            if now != "passed":
                into.differences.append(Difference(test, now, error))
        elif now == "passed":
            into.gained.append(test)
    return into
