"""Loops with effects that JAX divides for differentiation."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import effects as fx


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])
def test_branch_in_a_loop_that_is_divided(wrap, lines):
    """A branch that is chosen by what is known ahead shows what it shows, once, and in its iteration."""

    def step(c, i):
        def even(c):
            fx.print("even {}", i)
            return c * 2

        return lax.cond(i % 2 == 0, even, lambda c: c * 3, c), None

    slopes = []
    program = fx.jit(jax.grad(wrap(lambda x: lax.scan(step, x, jnp.arange(3))[0])))
    assert lines(lambda: slopes.append(program(1.0))) == ["even 0", "even 2"]
    assert slopes == [12]
