"""A temporary copy of the tree, to which one slip at a time is applied."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import NO_PLUGINS, ROOT
from tests.mutants.slip import Slip, is_native_test, native_name
from tests.native_program import FLAGS, build, build_with, run

SECONDS = 180  # for each test, and times those that are named for all; far above what any takes: only a hang reaches it
NATIVE_SECONDS = 5  # for one native test, without sanitizers; the same, as they take less than a fifth of a second


class NotFound(Exception):
    """The old text of a slip is not there once."""


@dataclass(frozen=True)
class Verdict:
    """What the tests of a slip said."""

    failed: bool
    why: str  # what failed, or could not be run
    was_run: bool = True
    test: str = ""  # which failed, if it is known


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What a copy does without: version control, results of builds, and virtual environments."""
    others = {".git", "__pycache__", ".pytest_cache", "build", "dist"}
    return {name for name in names if name in others or Path(folder, name, "pyvenv.cfg").exists()}


class Copy:
    """A copy of a tree in a folder that is empty."""

    def __init__(self, folder: Path, tree: Path = ROOT) -> None:
        self._root = folder / "tree"
        self._built = folder / "built"
        self._built.mkdir()
        self._running: subprocess.Popen[str] | None = None
        shutil.copytree(tree, self._root, symlinks=True, ignore=_left_out)

    @property
    def root(self) -> Path:
        return self._root

    def stop(self) -> None:
        """Ends the tests that run, and the processes that they have started."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)

    @contextlib.contextmanager
    def with_slip(self, slip: Slip) -> Iterator[None]:
        """The slip is made in here."""
        path = self._root / slip.file
        before = path.read_text() if path.exists() else ""
        if before.count(slip.old) != 1:
            raise NotFound(f"its old text is {before.count(slip.old)} times in {slip.file}")
        path.write_text(before.replace(slip.old, slip.new))
        try:
            yield
        finally:
            path.write_text(before)

    def check(self, tests: Sequence[str], changed: Slip | None = None) -> Verdict:
        """Runs tests, with this slip made or with none."""
        native = [test for test in tests if is_native_test(test)]
        if native:
            try:
                program = build(FLAGS) if changed is None else build_with(self._root / changed.file, self._built)
            except AssertionError as error:
                return Verdict(True, f"the native tests cannot be built: {error}", was_run=False)
            for test in native:
                code, _ = run([program, native_name(test)], NATIVE_SECONDS)
                if code != 0:
                    return Verdict(True, f"{test}{' was still running' if code == -1 else ''}", test=test)
        if others := [test for test in tests if not is_native_test(test)]:
            return self._check_with_pytest(others)
        return Verdict(False, "")

    def _check_with_pytest(self, tests: Sequence[str]) -> Verdict:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            "--tb=line",
            f"--timeout={SECONDS}",
        ]
        command += ["--timeout-method=thread", *tests]  # which ends the process, wherever it hangs
        # Without compiled files, which Python tells apart by size and second.
        env = {**os.environ, **NO_PLUGINS, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": ""}
        started = subprocess.Popen(
            command,
            cwd=self._root,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._running = started
        try:
            output, _ = started.communicate(timeout=SECONDS * len(tests))
        except subprocess.TimeoutExpired:
            self.stop()
            started.communicate()
            return Verdict(True, f"still running after {SECONDS * len(tests)} s")
        except BaseException:
            self.stop()
            raise
        if started.returncode == 0:
            return Verdict(False, "")
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M)
        if started.returncode == 1 and failed:
            return Verdict(True, failed[0], test=failed[0])
        if re.search(r"^\++ Timeout \++$", output, re.M):
            return Verdict(True, f"a test is still running after {SECONDS} s")
        if started.returncode == 2 and "KeyboardInterrupt" in output:  # and not an error while tests are collected
            return Verdict(True, "a test interrupted pytest")
        if started.returncode < 0 or "Fatal Python error" in output:
            return Verdict(True, f"the process ended with {started.returncode}")
        return Verdict(True, f"pytest ended with {started.returncode}: {output[-2000:]}", was_run=False)
