"""Handlers that write files, and a disk that is full."""

from __future__ import annotations

import csv
import json

import pytest

from tests.forks import run_forked

# A limit on the size of files does what a full disk does: a part of what is written is.
FULL = """
import resource, sys
import jax, effects as fx
handler = getattr(fx, {handler!r})({path!r})
added = fx.add_handler(handler, "log")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("step", i=i), None))(100)
try:
    fx.effects_barrier()
except fx.EffectError as error:
    print("raised", type(error.__cause__).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
fx.jit(lambda: fx.log("step", i=1000))()
try:
    fx.remove_handler(added)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("handler", ["JsonLinesHandler", "CsvHandler"])
def test_full_disk_leaves_whole_lines_and_a_count(handler, tmp_path):
    """What could not be written is counted, no line is cut off, and what comes when there is room again is written."""
    path = tmp_path / "run"
    done = run_forked(FULL.format(handler=handler, path=str(path)))
    assert done.returncode == 0, done.stderr
    raised, lost = done.stdout.splitlines()
    assert raised == "raised OSError"
    text = path.read_text()
    assert text.endswith("\n")
    if handler == "CsvHandler":
        numbers = [int(row["i"]) for row in csv.DictReader(text.splitlines())]
        lines_lost = 101 - len(numbers)
    else:
        numbers = [json.loads(line)["fields"]["i"] for line in text.splitlines()]
        lines_lost = 101 - len(numbers)
    assert numbers == [*range(len(numbers) - 1), 1000]
    assert f"{lines_lost} lines of '{path}' could not be written" in lost
