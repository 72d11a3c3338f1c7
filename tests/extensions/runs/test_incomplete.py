"""A run file that lacks records, calls or ends says so, and says nothing that it does not know."""

from __future__ import annotations

import json
import os
import re

import jax
import pytest

import effects as fx
from tests.helpers import run_python
from tests.internals import _cli


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.fx"


@pytest.fixture
def command(capsys):
    """Runs a command of `effects` in this process: its status, output and errors."""

    def run(*words):
        capsys.readouterr()
        status = _cli.main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("count", [10, 3000])
@pytest.mark.parametrize("how", [(), ("--json",), ("--stats",), ("--stats", "--json"), ("--last",)])
def test_overwritten_beginning_is_said(count, how, path, command):
    """Each way of showing a run says it, and none does if the file has room for all records."""
    with fx.record(path, max_bytes=1 << 16), fx.capture(suppress=True):
        fx.jit(lambda: jax.lax.fori_loop(0, count, lambda i, _: fx.log("step", i=i), None))()
    process = fx.runs.read(path).processes[0]
    said = f"{path}: the file was full, and its beginning is overwritten. How many records that was is not known.\n"
    assert process.is_cut == (count == 3000)
    for strict in ((), ("--strict",)):
        status, _, errors = command("show", *how, *strict, path)
        assert (status, errors) == ((int(bool(strict)), said) if process.is_cut else (0, ""))


KILLED = """
import os, signal, threading, effects as fx
def hangs(x):
    try:
        fx.effects_barrier(timeout=0.01)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)
def first(x):
    fx.print("before")
    fx.callback(hangs, None, x)
fx.jit(first)(1.0)
fx.effects_barrier()
"""


def test_call_in_which_the_recording_begins_is_named(path, command):
    """EFFECTS_RUN begins to record in the midst of the first call, of which the file has all. How long a killed process
    has waited is known up to its newest entry only."""
    run_python(KILLED, env={"EFFECTS_RUN": str(path)})
    _, text, _ = command("show", "--last", path)
    assert re.search(r"The program `\S*first` \(thread 1, dispatch 0\), called \S+ m?s before, ", text), text
    assert "was ended without closing" in text and re.search(r"`hangs` at .* has run for at least ", text), text
    _, text, _ = command("show", "--last", "--json", path)
    [program] = json.loads(text)["processes"][0]["programs"]
    assert not program["is_earlier"] and program["called"] is not None and program["name"].endswith("first")


def test_what_cannot_be_meant_is_refused(path, command):
    """Wrong arguments raise one error before any file is touched, and a selection without records says so."""
    for bad in ("a\0b", b"a\0b"):
        with pytest.raises(ValueError, match="zero character"):
            fx.record(bad)
    with pytest.raises(TypeError, match="PathLike"):
        fx.record(3)
    with fx.record(os.fsencode(path)) as recording, fx.capture(suppress=True):
        fx.print("1")
    with pytest.raises(RuntimeError, match="again after its end"), recording:
        pass
    with pytest.raises(fx.runs.RunError, match="without a path"):
        fx.runs.read()
    for words in (["diff", path, "--rtol", "-1"], ["diff", path, "--atol", "nan"], ["show", "--since", "nan"]):
        status, output, errors = command(*words, path)
        assert (status, output) == (2, "") and errors.count("\n") == 1, errors
    for words in (["--device", "7"], ["--process", "7"]):
        assert command("show", *words, path) == (0, "", "No record of the run is selected.\n")
    assert command("show", path) == (0, "1\n", "")
