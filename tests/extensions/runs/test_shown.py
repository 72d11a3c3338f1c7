"""`effects show` is what the program printed, and shows everything else too, in a process that has only the file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

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


def recorded(part, folder):
    """A part of the program: its run file, what it has written, and the records of a capture."""
    path, records = folder / "run.fx", folder / "records.json"
    done = run("tests.extensions.runs.shown_program", part, path, records, **EIGHT_DEVICES)
    assert done.returncode == 0, done.stderr.decode()
    captured = json.loads(records.read_text())
    assert b"without room" not in show("--stats", path).stderr
    return path, done.stdout, captured["records"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["formats", "contexts"])
def test_what_was_printed_is_shown_byte_for_byte(part, tmp_path):
    """Every type of value in every format, level and context, printed and logged."""
    path, printed, _ = recorded(part, tmp_path)
    assert printed.count(b"\n") > 1000
    done = show("--strict", path)
    for at, (line, other) in enumerate(zip(done.stdout.split(b"\n"), printed.split(b"\n"), strict=False)):
        assert line == other, at
    assert (done.stdout, done.stderr, done.returncode) == (printed, b"", 0)


KINDS = {"print", "log", "check", "callback", "save", "jax.debug", "progress", "async", "watch"}
NOT_SHOWN = "[not shown as in its program: "


@pytest.mark.slow
def test_every_kind_of_effect_has_a_line(tmp_path):
    """Callbacks, checks, progress, watches, logs of kernels, operations on the host, and an effect that only the
    program has registered; and where the text cannot be made here, a line says why, and is counted."""
    path, _, captured = recorded("others", tmp_path)
    shown = [json.loads(line) for line in show("--json", path).stdout.splitlines()]
    assert {record["effect"] for record in shown} == KINDS
    of_file = [(record["effect"], record["where"]["line"], tuple(record["lane"])) for record in shown]
    assert sorted(of_file) == sorted((effect, line, tuple(lane)) for effect, _, line, _, lane, _ in captured)

    done = show(path)
    lines = done.stdout.decode().splitlines()
    assert len(lines) == len(shown) == len(captured)
    texts = {text.replace("\n", " ") for _, text, *_ in captured if text is not None}
    unshown = [line for line in lines if NOT_SHOWN in line]
    for line in lines:
        assert line in unshown or any(text in line for text in texts), line
    reasons = ["made (ValueError('Precision not allowed in ", "its program knows `Layer`] '{0.w", "`Layer`] 'own' x=[["]
    reasons.append("its program knows `Corner`] '{}' {'a': ")
    for line, reason in zip(unshown, reasons, strict=True):
        assert reason in line and re.search(r" shown_program.py:\d+$", line)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines()[-1].startswith("4 records not shown as in their program")
    assert show("--strict", path).returncode == show("--strict", "--json", path).returncode == 1

    for effect in sorted(KINDS):
        own = show("--effect", effect, path)
        assert own.returncode == 0
        assert len(own.stdout.splitlines()) == sum(1 for record in captured if record[0] == effect) > 0
