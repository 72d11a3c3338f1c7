"""`{x:stats}` shows an array as a whole."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import output_of


@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["fx.jit", "eager"])
@pytest.mark.parametrize(
    ("x", "stats"),
    [
        ([0.0, 3.0, 4.0, -3.0], "min=-3 max=4 mean=1 norm=5.831 zeros=25.0% nonfinite=0.0%"),
        ([np.nan, 2.0, np.inf, 0.0], "min=0 max=2 mean=1 norm=2 zeros=25.0% nonfinite=50.0%"),
        ([np.nan, np.inf], "none of 2 is finite"),
        ([], "no elements"),
        ([3 + 4j, 0], "min=0 max=5 mean=2.5 norm=5 zeros=50.0% nonfinite=0.0%"),
        ([True, False], "min=0 max=1 mean=0.5 norm=1 zeros=50.0% nonfinite=0.0%"),
    ],
)
def test_stats_of_an_array(jit, x, stats):
    """Of the finite elements; of complex ones the magnitudes; in pytrees too."""
    x = jnp.asarray(x)
    assert output_of(jit, lambda x: fx.print("x = {x:stats}, {y[0]:stats}", x=x, y=[x]), x) == f"x = {stats}, {stats}\n"


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e5m2, jnp.int8, jnp.uint32])
def test_stats_of_all_types(dtype):
    x = jnp.array([0, 1, 2, 4]).astype(dtype)
    shown = output_of(fx.jit, lambda x: fx.print("{:stats}", x), x)
    assert shown == "min=0 max=4 mean=1.75 norm=4.583 zeros=25.0% nonfinite=0.0%\n"


def test_number_has_stats_of_its_own():
    """A leaf of a tree may be a number."""
    shown = output_of(fx.jit, lambda x: fx.print("{:stats}", x), 1.0)
    assert shown == "min=1 max=1 mean=1 norm=1 zeros=0.0% nonfinite=0.0%\n"
