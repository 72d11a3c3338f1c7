"""Loops with effects that JAX divides for differentiation."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import effects as fx

WRAPS = pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])


@WRAPS
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


@WRAPS
@pytest.mark.parametrize("has_results", [True, False])
def test_branch_that_is_the_same_in_each_iteration(wrap, has_results, lines):
    """JAX computes ahead of the loop what is the same in each iteration. A branch with effects stays in the loop."""

    def program(x, known):
        def shows(known):
            fx.print("known {}", known)
            return known + 1 if has_results else None

        def step(c, _):
            factor = lax.cond(known > 0, shows, lambda known: known if has_results else None, known)
            return c * (factor if has_results else 2), None

        return lax.scan(step, x, None, length=3)[0]

    slopes = []
    slope = fx.jit(jax.grad(wrap(program)))
    assert lines(lambda: slopes.append(slope(1.0, 1.0))) == ["known 1.0"] * 3
    assert slopes == [8]


def _loop(asks, steps):
    """A loop of two iterations, whose condition and body have effects or none."""

    def goes_on(carry):
        if asks:
            fx.print("asks {}", carry[0])
        return carry[0] < 2

    def step(carry):
        if steps:
            fx.print("steps {}", carry[0])
        return carry[0] + 1, carry[1] * 3

    return lambda x: lax.while_loop(goes_on, step, (0, x))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
@pytest.mark.parametrize(("asks", "steps"), [(True, False), (False, True), (True, True)])
def test_loop_that_runs_again_for_the_tangents(asks, steps, wrap, lines):
    """The effects of its condition happen once, and those of its body, whichever of them has any."""
    slopes = []
    f = fx.jit(lambda x: jax.linearize(wrap(_loop(asks, steps)), x)[1](x))
    shown = [f"asks {i}" for i in range(3)] if asks else []
    for i in range(2) if steps else ():
        shown.insert(2 * i + 1 if asks else i, f"steps {i}")
    assert lines(lambda: slopes.append(f(1.0))) == shown
    assert slopes == [9]


def test_loop_in_a_rematerialized_region_is_linearized(lines):
    """A `while` runs again for its tangents without its effects, also where JAX divides it in a `checkpoint`."""

    @jax.checkpoint
    def f(x):
        def body(c):
            fx.print("{} {}", *c)
            return c[0] + 1, c[1] * 2

        return lax.while_loop(lambda c: c[0] < 2, body, (0, x))[1]

    slopes = []
    program = fx.jit(lambda x: jax.linearize(f, x)[1](1.0))
    assert lines(lambda: slopes.append(program(3.0))) == ["0 3.0", "1 6.0"]
    assert slopes == [4]
