"""Futures are one type if they come to the same results, wherever they were started."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


def _start_values(x):
    return fx.async_start(jnp.sin, x)


def _start_others(x):
    return fx.async_start(lambda x: jnp.sin(x), x)


def _call(x):
    return fx.async_callback(lambda x: np.sin(x), x, x)


def _call_another(x):
    return fx.async_callback(np.sin, x, x)


STARTS = pytest.mark.parametrize(
    ("first", "second"), [(_start_values, _start_others), (_call, _call_another)], ids=["values", "callbacks"]
)


@STARTS
def test_loop_carries_what_was_started_in_another_line(first, second):
    """A loop carries the future that was started ahead of it, and then those of its turns."""

    @fx.jit
    def f(x):
        future = jax.lax.fori_loop(0, 3, lambda _, future: second(fx.async_done(future)), first(x))
        return fx.async_done(future)

    x = jnp.float32(1)
    np.testing.assert_allclose(f(x), np.sin(np.sin(np.sin(np.sin(x)))), rtol=1e-6)


@STARTS
def test_branches_return_what_each_has_started(first, second):
    """Two branches of a `cond` start something in their own lines."""

    @fx.jit
    def f(x):
        return fx.async_done(jax.lax.cond(x > 0, first, second, x))

    for x in jnp.float32(1), jnp.float32(-1):
        np.testing.assert_allclose(f(x), np.sin(x), rtol=1e-6)
