"""Without the folder of `fx.inspect` nothing but its names is gone."""

from __future__ import annotations

import pytest

from tests.helpers import run_python
from tests.taken_out import ASKS_FOR_NAMES, copy_without, of_extensions

pytestmark = pytest.mark.slow

OPERATION = """
import jax.numpy as jnp
from effects.asynchronous import FutureError, async_done, async_start

print(fx.jit(lambda x: async_done(async_start(jnp.negative, x)))(1))
"""


def test_without_inspecting(tmp_path):
    """Every other name is there, and its own say which extension is not installed. What it shows works without it."""
    copy_without(tmp_path, "inspecting")
    done = run_python(ASKS_FOR_NAMES + OPERATION, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    own = ["InspectedOperation", "Inspection", "TextError", "inspect", "parse"]
    assert done.stdout.split() == [*(f"{name}:inspecting" for name in own), "-1"]
    assert {*own} == of_extensions("inspecting")
