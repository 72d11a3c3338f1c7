"""A program with effects makes no copy more than without them, where it makes the values that it shows in any case."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import effects as fx

X = jnp.linspace(0.0, 3.0, 64)


def _straight(x, show):
    y = jnp.sin(x) * 2
    show(y)
    return jnp.cos(y) + 1


def _derivative(x, show):
    def loss(x):
        y = jnp.sin(x) @ jnp.ones((64, 64))
        show(y)
        return (y**2).sum()

    return jax.grad(loss)(x)


def _scan(x, show):
    def step(x, i):
        x = jnp.sin(x) * i
        show(x)
        return x, None

    return jax.lax.scan(step, x, jnp.arange(4.0))[0]


def _while(x, show):
    def step(x):
        x = x * 2 + 1
        show(x)
        return x

    return jax.lax.while_loop(lambda x: x.sum() < 1000, step, x)


def _branch(x, show):
    return jax.lax.cond(x.sum() > 0, lambda x: (show(x), x + 1)[1], lambda x: x, x)


def _carried_from_the_start(x, show):
    def step(x, i):
        show(x)
        return jnp.sin(x) * i, None

    return jax.lax.scan(step, x, jnp.arange(4.0))[0]


SHOWS = {
    "fx.print": lambda x: fx.print("{}", x),
    "fx.log": lambda x: fx.log("event", x=x),
    "fx.callback": lambda x: fx.callback(id, None, x),
}


def _copies(program, show):
    """The number of arrays of 64 numbers that the compiled program copies, each counted once where a loop copies it."""
    text = fx.jit(lambda x: program(x, show)).lower(X).compile().as_text()
    return len(re.findall(r"= f32\[64\]\S* copy(?:-start)?\(", text))


@pytest.mark.slow
@pytest.mark.parametrize("show", SHOWS)
@pytest.mark.parametrize("program", [_straight, _derivative, _scan, _while, _branch])
def test_no_copy_more(program, show):
    """Neither in straight code nor in a loop or a branch is what an effect takes copied for it."""
    assert _copies(program, SHOWS[show]) <= _copies(program, lambda x: None)


def test_carried_value_is_copied_where_it_is_shown_ahead_of_the_next():
    """The count sees a copy where there is one: what a loop carries is read by the effect and by the next value."""
    assert _copies(_carried_from_the_start, SHOWS["fx.print"]) == _copies(_carried_from_the_start, lambda x: None) + 1
