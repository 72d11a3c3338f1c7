"""Levels of loggers, and what they got."""

from __future__ import annotations

import logging

import jax
import pytest

import effects as fx


@pytest.fixture(autouse=True)
def _root_level():
    """Logging shows levels from INFO on, while the logger `effects` has no level of its own."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    yield
    root.setLevel(before)


@pytest.fixture
def logged(caplog):
    """`logged(f, *args)` calls `f` and returns what Python's logging got from it."""

    def collect(f, *args):
        caplog.clear()
        jax.block_until_ready(f(*args))
        fx.effects_barrier(timeout=120)
        return [record for record in caplog.records if record.name == "effects"]

    return collect
