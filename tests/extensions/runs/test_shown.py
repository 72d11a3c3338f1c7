"""`effects show` is what the program printed, and shows everything else too, in a process that has only the file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.extensions.runs import shown_program
from tests.helpers import ROOT

EIGHT_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}


def run(*words, **environment):
    """What a process has written, as bytes, and its status."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
        timeout=300,
    )


def show(*words):
    return run("effects", "show", *words, XLA_FLAGS="")


@pytest.fixture(scope="module", params=shown_program.PARTS)
def recorded(request, tmp_path_factory):
    """A part of the program: its name, its run file, what it has written, and the records of a capture."""
    folder = tmp_path_factory.mktemp(request.param)
    path, records = folder / "run.fx", folder / "records.json"
    done = run("tests.extensions.runs.shown_program", request.param, path, records, **EIGHT_DEVICES)
    assert done.returncode == 0, done.stderr.decode()
    captured = json.loads(records.read_text())
    assert captured["lost"] == 0
    return request.param, path, done.stdout, captured["records"]


def test_what_was_printed_is_shown_byte_for_byte(recorded):
    """Every type, format, level and context: prints and logs are shown as the program has written them."""
    part, path, printed, _ = recorded
    chosen = [] if part != "others" else ["--effect", "print"]
    shown = show(*chosen, path)
    assert shown.returncode == 0, shown.stderr.decode()
    if part == "others":  # these write no lines, or cannot be shown
        pytest.skip("what else there is has a test of its own")
    lines, expected = shown.stdout.split(b"\n"), printed.split(b"\n")
    for at, (line, other) in enumerate(zip(lines, expected, strict=False)):
        assert line == other, at
    assert len(lines) == len(expected)
