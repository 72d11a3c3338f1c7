"""Runs files of tests plainly and with `fx.jit`, and says what differs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.helpers import NO_PLUGINS, ROOT
from tests.jax_suite import outcomes

CASES = "JAX_NUM_GENERATED_CASES"
_FEW_CASES = "2"
"""How many cases JAX's tests choose of their tables of operands, unless the environment says otherwise."""

_MOST_ENDS = 20
"""How many tests of one file may end their process, before the rest of the file is given up."""

_ENDED = "ended its process"
_OVER = "the file is over"
_ENDS_OF_PYTEST = range(6)


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that passes plainly, and not with `fx.jit`."""

    test: str
    outcome: str
    error: str

    @property
    def name(self) -> str:
        """As a document names it: without its class, since a list of names is made for a file."""
        return self.test.rpartition("::")[2]

    def __str__(self) -> str:
        return f"{self.test}: {self.outcome}{': ' if self.error else ''}{self.error}"


@dataclasses.dataclass
class Comparison:
    """What became of tests."""

    plain: int = 0  # tests that pass plainly
    differences: list[Difference] = dataclasses.field(default_factory=list)
    gained: list[str] = dataclasses.field(default_factory=list)  # pass with `fx.jit` only
    unfinished: int = 0  # files that have tests to come

    @property
    def passed(self) -> int:
        return self.plain - len(self.differences)

    @property
    def percent(self) -> float:
        return 100.0 * self.passed / self.plain if self.plain else 100.0

    def add(self, other: Comparison) -> None:
        self.plain += other.plain
        self.differences += other.differences
        self.gained += other.gained
        self.unfinished += other.unfinished

    def __str__(self) -> str:
        lines = [
            f"{self.passed} of {self.plain} tests that pass with `jax.jit` pass with `fx.jit` ({self.percent:.2f} %)"
        ]
        lines += [f"  {difference}" for difference in self.differences]
        lines += [f"  {test}: passes with `fx.jit` only" for test in self.gained]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where outcomes are kept, and how long tests may take. What is kept already is not run again."""

    results: Path
    only: str = ""
    of_each: int = 0
    timeout: float = 300.0
    deadline: float = float("inf")  # by `time.monotonic`
    kernels: bool = False  # each is compiled by itself

    def compare(self, path: Path, again: bool = False) -> Comparison:
        """What differs in a file; with `again`, what differed has its turn again."""
        plain_file, our_file = self._files(path.stem)
        if again:
            plain, ours = outcomes.read(plain_file), outcomes.read(our_file)
            differing = {
                test for test, (outcome, _) in plain.items() if outcome == "passed" != ours.get(test, ("",))[0]
            }
            if differing:
                outcomes.forget(our_file, {*differing, self._over})
        self._run(path, plain_file, in_place=False)
        self._run(path, our_file, in_place=True)
        return self.kept(path.stem)

    def kept(self, stem: str) -> Comparison:
        """What differs in a file, as far as outcomes are kept."""
        plain_file, our_file = self._files(stem)
        return self._compared(outcomes.read(plain_file), outcomes.read(our_file))

    def _files(self, stem: str) -> tuple[Path, Path]:
        return self.results / f"{stem}.jax.jsonl", self.results / f"{stem}.fx.jsonl"

    @property
    def _over(self) -> str:
        return f"{_OVER}: {self.only}, {self.of_each} of each"

    def _compared(self, plain: dict[str, tuple[str, str]], ours: dict[str, tuple[str, str]]) -> Comparison:
        all_ran = self._over in plain and self._over in ours
        result = Comparison(unfinished=0 if all_ran else 1)
        for test, (outcome, _) in plain.items():
            now, error = ours.get(test, (outcomes.BEGAN, ""))
            if now == outcomes.BEGAN:
                if not all_ran:
                    continue
                now = "not run"
            if outcome == "passed":
                result.plain += 1
                if now != "passed":
                    result.differences.append(Difference(test, now, error))
            elif now == "passed":
                result.gained.append(test)
        return result

    def _run(self, path: Path, written: Path, in_place: bool) -> None:
        """Runs what has no outcome yet, in processes of their own."""
        if self._over in outcomes.read(written):
            return
        for _ in range(_MOST_ENDS):
            if time.monotonic() >= self.deadline:
                return
            before = self._ended(written)
            end = self._process(path, written, in_place)
            if end is None:
                return
            if end == "":
                break
            for test in set(outcomes.read(written)) - self._ended(written):
                outcomes.write(written, test, end)
            if self._ended(written) == before:
                break
        outcomes.write(written, self._over, _OVER)

    @staticmethod
    def _ended(written: Path) -> set[str]:
        return {test for test, (outcome, _) in outcomes.read(written).items() if outcome != outcomes.BEGAN}

    def _process(self, path: Path, written: Path, in_place: bool) -> str | None:
        """How it ended: as it should (""), otherwise, or not at all before the deadline."""
        names = ["outcomes", "checkout", *["in_place"] * in_place, *["kernels"] * self.kernels]
        plugins = [f"tests.jax_suite.{name}" for name in names]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [option for plugin in plugins for option in ("-p", plugin)]
        command += ["-k", self.only] if self.only else []
        path_variable = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {CASES: _FEW_CASES, **os.environ, **NO_PLUGINS, "PYTHONPATH": path_variable, outcomes.FILE: str(written)}
        env[outcomes.OF_EACH] = str(self.of_each)
        process = subprocess.Popen(
            [*command, str(path)], cwd=path.parent, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            size, since = -1, 0.0
            while True:
                try:
                    code = process.wait(timeout=1)
                    return "" if code in _ENDS_OF_PYTEST else _ENDED
                except subprocess.TimeoutExpired:
                    pass
                now = time.monotonic()
                if now >= self.deadline:
                    return None
                if (size_now := written.stat().st_size if written.exists() else 0) != size:
                    size, since = size_now, now
                elif now - since > self.timeout:
                    return f"took more than {self.timeout:.0f} s"
        finally:
            process.kill()
            process.wait()
