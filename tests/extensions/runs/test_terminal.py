"""The commands that read runs, on terminals of 80 columns, in pipes, and for what is not in the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import jax
import pytest

import effects as fx
from effects.cli import main
from tests.helpers import ROOT

FILE = "a_module_with_a_long_name.py"
PROGRAM = """
@fx.jit
def f(n):
    def step(i, _):
        fx.print("a format that has many words, and more of them: {} {:>9}", i, i)
        fx.log("a step", i=i)
    jax.lax.fori_loop(0, n, step, None)
"""


@pytest.fixture
def path(tmp_path):
    names = {"fx": fx, "jax": jax}
    exec(compile(PROGRAM, FILE, "exec"), names)
    fx.register_effect(fx.Effect("save"))
    with fx.capture(suppress=True), fx.record(tmp_path / "run.fx"):
        names["f"](3000)
        fx.print("saved", effect="save")
    return tmp_path / "run.fx"


@pytest.mark.parametrize("columns", ["80", "20"])
def test_file_and_line_are_whole_in_a_narrow_terminal(columns, path, capsys, monkeypatch):
    """Long texts are cut; names, lines and counts are not."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["show", "--stats", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any(line.endswith("…") for line in lines)
    for line in (5, 6):
        [row] = [row for row in lines if row.startswith(f"{FILE}:{line} ")]
        assert " 3,000 " in row


COMMANDS = [
    *("show {0}", "show --json {0}", "show --stats {0}", "show --last {0}", "tail {0}", "tail --json {0}"),
    *("diff {0} {0}", "diff --help", "trace -o /dev/stdout {0}", "doctor"),
    *("demo", "--help"),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(command, path):
    """As `head` does. Nothing is written to the other stream."""
    ours, its = os.pipe()
    os.close(ours)  # its reader is gone before the first byte
    words = [sys.executable, "-m", "effects", *command.format(path).split()]
    done = subprocess.run(words, cwd=ROOT, stdout=its, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(its)
    assert done.stderr == "" and done.returncode in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "show --json", "show --stats", "show --last", "tail"])
def test_effects_are_those_of_the_file(command, path):
    """This process need not have registered them. One that is not there is an error of one line."""
    words = [sys.executable, "-m", "effects", *command.split(), str(path), "--effect"]
    done = subprocess.run([*words, "save"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "save" in done.stdout
    done = subprocess.run([*words, "load"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "is one of load." in done.stderr
    assert {"log", "print", "save"} <= {*re.search(r" of the effects (.*)\.", done.stderr)[1].split(", ")}


def test_counts_are_json(path, capsys):
    """`--stats --json` has an object for each line."""
    assert main(["show", "--stats", "--json", str(path)]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    of_file = [(row["file"], row["line"], row["effect"], row["what"], row["count"]) for row in rows]
    assert (FILE, 6, "log", "a step", 3000) in of_file and len(rows) == 3
    assert sum(row["share"] for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("count", [2**62, 2**63, 2**64 - 1])
def test_counts_of_64_bits_are_taken(count, lines):
    """Nothing comes to so large a count."""
    f = fx.jit(lambda x: fx.print("{}", x, every=count, first=count))
    assert lines(f, 1) == ["1"] and lines(f, 2) == []
    with fx.sites("test_terminal.py", effect="print").every(count):
        assert lines(f, 3) == []
