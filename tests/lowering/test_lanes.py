"""What is called for one lane of a `vmap` after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from effects.lowering.masks import lane_by_lane


@pytest.fixture(scope="module")
def program():
    """An exported program, which is no function of lanes."""

    @fx.jit
    def double(x):
        fx.print("{}", x)
        return 2 * x

    exported = fx.deserialize(fx.export(double)(jnp.int32(0)).serialize())
    return lambda x: jax.lax.cond(x % 2 == 1, exported.call, lambda x: x, x)


def test_outer_lanes_come_first(program, lines):
    """Where only some lanes of two `vmap`s have an exported program, the outer ones have it first."""
    shown = lines(fx.jit(jax.vmap(jax.vmap(program))), jnp.arange(1, 9).reshape(2, 4))
    assert shown == ["1", "3", "5", "7"]


def test_outer_lanes_that_do_not_differ(program, lines):
    """Each of them has it."""
    shown = lines(fx.jit(jax.vmap(lambda y: jax.vmap(program)(jnp.arange(4)) + y)), jnp.arange(2))
    assert shown == ["1", "3", "1", "3"]


def test_derivatives():
    """A function that is called for one lane after the other has the derivatives that it has by itself."""

    def f(x, n):
        square, cube = lane_by_lane(lambda x, n: [x**2, x * n], [x, n])
        return jnp.sin(square) + cube

    def plain(x, n):
        return jnp.sin(x**2) + x * n

    xs, ns = jnp.arange(1.0, 7.0).reshape(2, 3), jnp.arange(6).reshape(2, 3)
    for one in (f, plain):
        each = [jax.jvp(jax.vmap(jax.vmap(one)), (xs, 1.0 * ns), (xs, 0.0 * ns))]
        each.append(jax.vmap(jax.vmap(jax.jacfwd(one)))(xs, ns))
        each.append(jax.vmap(lambda x, n, one=one: jax.jvp(lambda x: one(x, n), (x,), (x,)))(xs[0], ns[0]))
        if one is f:
            ours = each
    assert jax.tree.all(jax.tree.map(lambda x, y: bool(jnp.allclose(x, y)), ours, each))
