"""Formats: specifications for the elements of arrays, and fields that the record fills."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


@pytest.mark.parametrize(
    ("fmt", "x", "text"),
    [
        ("{:.3f}", [1.23456, -2], "[1.235 -2.000]"),
        ("{:.3f}", [[1.0], [0.5]], "[[1.000]\\n [0.500]]"),
        ("{:>4}", [1, 200], "[   1  200]"),
        ("{:.1e}", jnp.array([1.5, 2], jnp.bfloat16), "[1.5e+00 2.0e+00]"),
        ("{:d}", [True, False], "[1 0]"),
        ("{0[1]:.2f} {0:.0f}", [1.0, 2.0], "2.00 [1 2]"),
        ("{0.shape} {0!r:>32}", [1.0, 2.0], "(2,)   array([1., 2.], dtype=float32)"),
        ("{:.2f}", 0.125, "0.12"),
        ("{}", [0.5, 1.0], "[0.5 1. ]"),
    ],
)
@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_specification_is_for_each_element(fmt, x, text, jit, lines):
    x = jnp.asarray(x)
    assert lines(jit(lambda x: fx.print(fmt, x)), x) == text.replace("\\n", "\n").split("\n")


def test_specification_in_lanes_and_trees(lines):
    program = fx.jit(jax.vmap(lambda x: fx.print("{x:.1f} {tree}", x=x, tree={"a": x})))
    assert lines(program, jnp.ones((2, 1))) == ["[1.0] {'a': array([1.], dtype=float32)}"] * 2


def test_specification_that_does_not_fit():
    with pytest.raises(fx.FormatError, match="Unknown format code 'd'"):
        fx.jit(lambda x: fx.print("{:d}", x))(jnp.ones(2))


def test_lane_in_a_format(lines):
    program = fx.jit(jax.vmap(jax.vmap(lambda x: fx.print("{lane}: {}", x))))
    assert lines(program, jnp.arange(4).reshape(2, 2)) == ["(0, 0): 0", "(0, 1): 1", "(1, 0): 2", "(1, 1): 3"]
    assert lines(fx.jit(lambda x: fx.print("{lane}: {}", x)), 1) == ["(): 1"]
    assert lines(fx.jit(lambda x: fx.print("{lane}", lane=x)), 1) == ["1"]  # an argument of that name


def test_lane_and_device_in_messages_of_checks():
    program = fx.jit(jax.vmap(lambda x: fx.error_if(x, x > 1, "{lane} on {device}")))
    with pytest.raises(fx.CheckError) as caught:
        program(jnp.arange(3))
    assert caught.value.message == "(2,) on 0"


def test_elements_of_an_array_in_a_pytree(lines):
    """A specification is one for each element, wherever the array is that a field shows."""
    state = {"loss": jnp.array([0.125, 2.0]), "of": (jnp.float32(1.5), jnp.ones(1))}
    assert lines(fx.jit(lambda s: fx.print("{s[loss]:.2f} {s[of][0]:.1f} {s[of][1]:.1f}", s=s)), state) == [
        "[0.12 2.00] 1.5 [1.0]"
    ]
    assert lines(fx.jit(lambda s: fx.print("{x:.1f} {s}", x=1.0, s=s)), state) == [
        f"1.0 {jax.tree.map(np.asarray, state)}"
    ]
