"""Unordered effects of programs over several devices: nothing but their calls tells them apart."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import effects as fx
from tests.dispatch.devices.meshes import by_device, rows_of


def _aside():
    fx.print("aside", ordered=False)


def _twice(x):
    """Two equal effects of one line. The addition between them keeps them two calls, which only their numbers make
    different: effects that stand next to each other are one call."""
    return (_aside(), x + 1, _aside())[1]


def _twice_in_fori(x):
    return lax.fori_loop(0, 3, lambda _, x: _twice(x), x)


def _twice_in_scan(x):
    return lax.scan(lambda x, _: (_twice(x), None), x, length=3)[0]


def _twice_in_while(x):
    def body(carry):
        return carry[0] + 1, _twice(carry[1])

    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


def _twice_in_jit(x):
    return lax.fori_loop(0, 3, lambda _, x: jax.jit(_twice)(x), x)


@pytest.mark.parametrize("program", [_twice_in_fori, _twice_in_scan, _twice_in_while, _twice_in_jit])
def test_equal_unordered_effects_are_as_many_as_were_written(program, lines):
    """Two calls from one line, without operands, in a loop: XLA makes one of what is the same in all, and over several
    devices a record is no side effect to it."""
    x = jax.device_put(jnp.arange(8), rows_of())
    f = fx.jit(program)
    for _ in range(2):
        assert lines(f, x) == ["aside"] * 6
    assert f(x).tolist() == list(range(3, 11))


@pytest.mark.parametrize("program", [_twice_in_fori, _twice_in_scan, _twice_in_while, _twice_in_jit])
def test_equal_unordered_effects_of_each_device(program, lines):
    """In a region each device has as many."""
    assert lines(fx.jit(by_device(program)), jnp.arange(4)) == ["aside"] * 24


def test_unordered_effects_all_end_in_the_output_token(lines):
    """What the program returns depends on each of them, though nothing else does."""

    def f(x):
        for number in range(4):
            fx.print("{} of {}", number, x, ordered=False)
            x = x + 1
        return x

    shown = lines(fx.jit(f), jax.device_put(jnp.arange(4), rows_of()))
    assert sorted(shown) == [f"{n} of [{n} {n + 1} {n + 2} {n + 3}]" for n in range(4)]
