"""Handlers that write files: what is already there, and a disk that is full."""

from __future__ import annotations

import csv
import errno
import json
import os
import stat

import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import loop
from tests.forks import run_forked


def _log():
    return loop(lambda i: fx.log("step", i=i), 3)


def _columns(path):
    with np.load(path) as arrays:
        return arrays["step/i"].tolist()


def test_npz_replaces_what_a_link_leads_to(handled, tmp_path):
    """A link stays a link, and the file keeps its mode."""
    path, link = tmp_path / "run.npz", tmp_path / "latest.npz"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    handled(fx.NpzHandler(link), _log(), effects="log")
    assert link.is_symlink() and _columns(path) == [0, 1, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_npz_keeps_its_records_if_it_cannot_be_joined(tmp_path, monkeypatch):
    """They are in pieces then, and the error says where."""
    path = tmp_path / "run.npz"
    added = fx.add_handler(fx.NpzHandler(path, every=0), effects="log")
    _log()()
    fx.effects_barrier()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", fail)
        with pytest.raises(OSError) as caught:
            fx.remove_handler(added)
    fx.NpzHandler(path, append=True).close()
    assert _columns(path) == [0, 1, 2]
    assert caught.value.__notes__ == [f"All records are in '{path}' and '{path}.pieces'."]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_npz_refuses_what_is_no_file(kind, tmp_path):
    """A pipe or a device is not replaced, and not waited for."""
    path = tmp_path / "there"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    before = os.stat(path).st_mode
    with pytest.raises(OSError, match="no ordinary file"):
        fx.NpzHandler(path)
    assert os.stat(path).st_mode == before


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


def test_full_disk_leaves_the_npz_that_was_there(tmp_path):
    """A piece that cannot be written whole is not written, and the error counts the records that the file lacks."""
    path = tmp_path / "run.npz"
    done = run_forked(
        "import resource, jax, effects as fx\n"
        f"handler = fx.NpzHandler({str(path)!r})\n"
        "added = fx.add_handler(handler, 'log')\n"
        "f = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log('step', i=i), None))\n"
        "f(3); fx.effects_barrier(); handler.flush()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        "f(1000)\n"
        "try:\n"
        "    fx.remove_handler(added)\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    assert "1000 records are not in" in done.stdout, (done.stdout, done.stderr)
    assert _columns(path) == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"]
