"""`fx.log` where Python's logging has not been configured: lines of the standard output."""

from __future__ import annotations

import logging

import jax.numpy as jnp
import pytest

import effects as fx
from tests.helpers import run_python

LOGGER = logging.getLogger("effects")


@pytest.fixture
def shown(lines, monkeypatch):
    """`shown(handlers=())` calls `step`, and returns the lines that it shows while logging has these handlers only.

    It takes away those of pytest, which is done anew whenever a test begins.
    """

    def call(*handlers):
        with monkeypatch.context() as patch:
            patch.setattr(LOGGER, "propagate", False)
            patch.setattr(LOGGER, "handlers", [*handlers])
            return lines(step, jnp.float32(1))

    return call


@fx.jit
def step(x):
    fx.print("x = {}", x)
    fx.log("seen", level="debug", x=x)
    fx.log("step", loss=x / 4, kind="a")
    fx.log("high", level=logging.WARNING)


FIRST = step.__wrapped__.__code__.co_firstlineno + 1
PRINT = "x = 1.0"
STEP = f"INFO     step loss=0.25 kind=a test_without_configuration.py:{FIRST + 3}"
HIGH = f"WARNING  high test_without_configuration.py:{FIRST + 4}"


def test_events_are_lines_of_the_output(shown):
    """With level, fields and the user's line, in order with prints; those below `INFO` are left out."""
    assert shown() == [PRINT, STEP, HIGH]


def test_levels_leave_lines_out(shown, monkeypatch):
    monkeypatch.setattr(LOGGER, "disabled", True)
    assert shown() == [PRINT]
    monkeypatch.setattr(LOGGER, "disabled", False)
    monkeypatch.setattr(LOGGER.manager, "disable", logging.INFO)
    assert shown() == [PRINT, HIGH]
    monkeypatch.setattr(LOGGER.manager, "disable", 0)
    level = LOGGER.level
    LOGGER.setLevel(logging.WARNING)
    try:
        assert shown() == [HIGH]
    finally:
        LOGGER.setLevel(level)


@pytest.mark.parametrize(
    ("effects", "expected"), [(None, [PRINT]), ("log", [PRINT]), ("print", [PRINT, STEP, HIGH])], ids=str
)
def test_handler_that_takes_events_has_them_instead(effects, expected, shown):
    with fx.add_handler(fx.ListHandler(), effects=effects):
        assert shown() == expected


def test_handler_of_a_library_does_not_count(shown):
    """absl has one for all loggers when it is imported; one of the user's has the events."""
    import absl.logging

    assert shown(absl.logging.get_absl_handler()) == [PRINT, STEP, HIGH]
    seen = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: seen.append(record.getMessage())
    assert shown(handler) == [PRINT]
    assert seen == ["step loss=0.25 kind=a", "high"]


def test_capture_keeps_them_from_the_output(shown):
    with fx.capture(suppress=True) as records:
        assert shown() == []
    assert len(records) == 4


@pytest.mark.slow
def test_in_a_process_of_its_own():
    done = run_python("import effects as fx\nfx.jit(lambda x: fx.log('step', x=x))(1)")
    assert (done.stdout, done.stderr) == ("INFO     step x=1 <string>:2\n", "")
