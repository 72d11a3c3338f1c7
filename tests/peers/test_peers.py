"""The command that runs a library's own tests under `fx.install()`."""

from __future__ import annotations

import pytest

from tests.peers.__main__ import main

pytestmark = pytest.mark.slow

SUITE = """
import os, sys
import jax

def test_same():
    assert jax.jit(lambda x: x + 1)(1) == 2

def test_imported():
    assert "effects" not in sys.modules, "this library is there"

def test_differs():
    assert "effects" not in jax.jit.__module__, "ours"

def test_ends_the_process():
    if "effects" in jax.jit.__module__:
        os._exit(9)

def test_goes_on():
    pass

def test_fails():
    assert False
"""


def test_differences_are_told(tmp_path, capfd):
    """Tests that pass plainly and not with ours are named, also if one ends the process; the tests after it run."""
    source, results = tmp_path / "source", tmp_path / "results"
    (source / "tests").mkdir(parents=True)
    (source / "tests/test_suite.py").write_text(SUITE)
    arguments = ["equinox", "--source", str(source), "--results", str(results)]
    assert main(arguments) == 1
    told = capfd.readouterr().out.splitlines()
    place = "  tests/test_suite.py::test_"
    assert told == [
        "plain      5 of 6 tests passed",
        "imported   4 of 6 tests passed",
        f"{place}imported: failed, plainly passed: AssertionError: this library is there",
        "installed  2 of 6 tests passed",
        f"{place}differs: failed, plainly passed: AssertionError: ours",
        f"{place}ends_the_process: ended its process with status 9, plainly passed",
        f"{place}imported: failed, plainly passed: AssertionError: this library is there",
        "4 differences",
    ]
    assert main(arguments) == 1 and capfd.readouterr().out.splitlines() == told  # nothing is run again
