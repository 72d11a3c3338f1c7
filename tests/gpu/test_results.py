"""What `python -m tests.gpu` keeps of a run that is killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.helpers import NO_PLUGINS, ROOT

pytestmark = pytest.mark.slow

TESTS = """
import os
import pathlib

there = pathlib.Path(__file__).with_name("there")

def test_passes():
    pass

def test_fails_at_first():
    assert there.exists(), "not yet"

def test_ends_the_process():
    if not there.exists():
        os._exit(7)
"""


def test_killed_run_loses_nothing(tmp_path):
    """Each result is there at once, and the next run leaves out what has passed."""
    file, results = tmp_path / "test_some.py", tmp_path / "results.txt"
    file.write_text(TESTS)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.results"]
        command += ["--results", results, *options, file]
        env = {**os.environ, **NO_PLUGINS}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)

    def lines():
        return [line.split()[0] + line[line.index("::") :] for line in results.read_text().splitlines() if "::" in line]

    killed = [
        *("begins::test_passes", "passed::test_passes"),
        *("begins::test_fails_at_first", "failed::test_fails_at_first", "begins::test_ends_the_process"),
    ]
    assert run().returncode == 7
    assert lines() == killed and "AssertionError: not yet" in results.read_text()
    (tmp_path / "there").touch()
    done = run("--go-on")
    assert done.returncode == 0 and "2 passed, 1 deselected" in done.stdout
    again = [f"{what}::{test}" for test in ("test_fails_at_first", "test_ends_the_process") for what in OUTCOMES]
    assert lines() == killed + again
    assert run("--go-on").returncode == 0
    assert lines() == killed + again
    assert "3 passed" in run().stdout


OUTCOMES = ("begins", "passed")
