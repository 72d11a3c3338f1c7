"""Random mixtures of prints, callbacks, custom calls and exchanges over eight devices, some of which fail."""

from __future__ import annotations

import pytest

from tests.storm.__main__ import main

pytestmark = pytest.mark.slow


def test_mixtures_are_as_they_are_read():
    """Nothing hangs; lines come in their order, values are those of a sequential reading, and failures are raised."""
    assert main(["--asynchronous", "10"]) == 0
