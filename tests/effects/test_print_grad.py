"""`fx.print_grad`: what a line of the backward pass may show, and how much of it is shown."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.effects.filters.common import P, mesh, texts_of


def _gradient(fmt, **options):
    """The gradient of twice the square, whose cotangent a line shows."""
    return jax.grad(lambda x: (fx.print_grad(fmt, x * x, **options) * 2).sum())


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_further_values_are_of_the_forward_pass(jit):
    """Values behind the first one, and named ones, are those that the forward pass had: arrays, numbers and text."""

    @jit
    @jax.grad
    def f(x):
        return fx.print_grad(": {} at {}, {name} {n}", x * x, x, name="loss", n=3) * x

    assert texts_of(f, 2.0) == ["2.0 at 2.0, loss 3"]


def test_further_values_in_a_scan():
    """Each iteration of the backward pass shows the values of its own iteration, the last one first."""

    def f(x):
        def step(x, i):
            return fx.print_grad(": {} i={i} x={x}", x * 2, i=i, x=x), None

        return jax.lax.scan(step, x, jnp.arange(3))[0]

    expected = ["1.0 i=2 x=4.0", "2.0 i=1 x=2.0", "4.0 i=0 x=1.0"]
    assert texts_of(fx.jit(jax.grad(f)), 1.0) == expected
    assert texts_of(fx.jit(jax.grad(jax.checkpoint(f))), 1.0) == expected


def test_further_values_that_are_the_same_in_all_lanes():
    """Of a value that does not depend on the lane each lane's line shows the same."""
    f = jax.vmap(lambda x, y: jax.grad(lambda x: fx.print_grad(": {} {lane} {}", x, y) * y)(x), (0, None))
    assert texts_of(fx.jit(f), jnp.arange(2.0), 3.0) == ["3.0 (0,) 3.0", "3.0 (1,) 3.0"]


def test_devices_of_the_backward_pass():
    """In a region the line names its device."""
    f = jax.shard_map(_gradient(": {} on {device}"), mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=False)
    assert texts_of(fx.jit(f), jnp.arange(4.0)) == [f"[2.] on {device}" for device in range(4)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"every": 2}, [0, 2]), ({"first": 1}, [0]), ({"min_seconds": 1000}, [0]), ({"level": "error"}, [0, 1, 2, 3])],
)
def test_filters_count_backward_passes(options, expected):
    """As for a print; what counts is how often backward passes come there."""
    f = fx.jit(_gradient(": {}", **options, logger=f"print_grad.{next(iter(options))}"))
    assert texts_of(lambda: [f(jnp.float32(i)) for i in range(4)] and None) == ["2.0"] * len(expected)


def test_level_of_the_logger():
    """It is a line, which a logger of a higher level leaves out."""
    logging.getLogger("print_grad.level").setLevel("WARNING")
    assert texts_of(fx.jit(_gradient(": {}", logger="print_grad.level")), 1.0) == []
    assert texts_of(fx.jit(_gradient(": {}", logger="print_grad.level", level="error")), 1.0) == ["2.0"]


@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["fx.jit", "eager"])
def test_when_is_of_the_forward_pass(jit):
    """A predicate that the forward pass has computed, also one that differs between lanes, decides of the line."""
    f = jit(jax.grad(lambda x: fx.print_grad(": {}", x * x, when=x > 1) * 2))
    assert texts_of(f, 2.0) == ["2.0"] and texts_of(f, 1.0) == []
    assert texts_of(jit(jax.vmap(f)), jnp.arange(4.0)) == ["2.0", "2.0"]


def test_cotangent_that_is_a_number():
    """JAX may bring a Python number as cotangent."""
    assert texts_of(lambda: jax.vjp(lambda x: fx.print_grad(": {}", x), 1.0)[1](1.0) and None) == ["1.0"]
    assert texts_of(lambda: jax.linear_transpose(lambda x: fx.print_grad(": {}", x), 1.0)(2.0) and None) == ["2.0"]
    f = jax.grad(lambda x: fx.print_grad(": {0[a]} {0[b]}", {"a": x, "b": 2.0})["a"] * 3)
    assert texts_of(f, 1.0) == ["3.0 0.0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"every": 0}, "every=0"), ({"when": 1.0}, "as `when`"), ({"level": "loud"}, "level 'loud'")],
)
def test_bad_input(options, said):
    with pytest.raises((TypeError, ValueError), match=rf"`fx.print_grad` at .*test_print_grad\.py:\d+.*{said}"):
        fx.jit(_gradient(": {}", **options))(1.0)
