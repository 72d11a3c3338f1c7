"""How a handler gets what it is for."""

from __future__ import annotations

import pytest

import effects as fx


@pytest.fixture
def handled():
    """`handled(handler, f, *args)` calls `f` with the handler added, and returns it when it has all and is closed."""

    def run(handler, f, *args, effects=None):
        token = fx.add_handler(handler, effects)
        try:
            f(*args)
            fx.effects_barrier(timeout=120)
        finally:
            fx.remove_handler(token)
        return handler

    return run
