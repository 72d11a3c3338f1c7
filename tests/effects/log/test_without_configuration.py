"""`fx.log` where Python's logging has not been configured: lines of the standard output."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers import run_python

PROGRAM = """
import logging, sys
import effects as fx

{before}

@fx.jit
def step(x):
    fx.print("x = {{}}", x)
    fx.log("seen", level="debug", x=x)
    fx.log("step", loss=x / 4, kind="a")
    fx.log("high", level=logging.WARNING)

{call}
fx.effects_barrier()
"""
LINES = ["x = 1.0", "INFO     step loss=0.25 kind=a", "WARNING  high"]


def run(before="", call="step(1.0)"):
    done = run_python(PROGRAM.format(before=textwrap.dedent(before), call=call))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def without_places(lines):
    return [line.rpartition(" <string>:")[0] or line for line in lines]


def test_events_are_lines_of_the_output():
    """With level, fields and the user's line, in order with prints; those below `INFO` are left out."""
    out, err = run()
    assert (without_places(out), err) == (LINES, [])
    assert out[1].endswith(" <string>:11")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("logging.getLogger('effects').setLevel('WARNING')", [LINES[0], LINES[2]]),
        ("logging.getLogger('effects').disabled = True", LINES[:1]),
        ("logging.disable(logging.INFO)", [LINES[0], LINES[2]]),
        ("import absl.logging", LINES),
        ("fx.add_handler(fx.ListHandler())", LINES[:1]),
        ("fx.add_handler(fx.ListHandler(), effects='print')", LINES),
    ],
)
def test_what_leaves_lines_out(before, expected):
    """Levels do, and handlers that take events; a handler of absl's, which libraries install, does not."""
    out, err = run(before)
    assert (without_places(out), err) == (expected, [])


def test_configured_logging_is_followed():
    out, err = run("logging.basicConfig(format='%(levelname)s|%(message)s')")
    assert (out, err) == (LINES[:1], ["WARNING|high"])


def test_console_handler_shows_each_event_once():
    out, _ = run("fx.add_handler(fx.ConsoleHandler(), effects='log')")
    assert [line.split()[0] for line in out] == ["x", "DEBUG", "INFO", "WARNING"]


def test_capture_keeps_them_from_the_output():
    out, _ = run(call="with fx.capture(suppress=True) as records: step(1.0)\nprint(len(records))")
    assert out == ["4"]


def test_redirected_output_has_them():
    out, _ = run(
        "import contextlib, io",
        "with contextlib.redirect_stdout(io.StringIO()) as out: step(1.0)\n"
        "fx.effects_barrier()\nprint('out', out.getvalue())",
    )
    assert out[0] == "out x = 1.0" and out[1].startswith(LINES[1])
