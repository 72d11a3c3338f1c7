"""Callbacks that raise what ends a thread or the process: their programs get it as they get any other error."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.raising import good_program_runs

F32 = jax.ShapeDtypeStruct((), jnp.float32)
pytestmark = pytest.mark.usefixtures("path")
EXITS = [SystemExit, KeyboardInterrupt, GeneratorExit]


def _raises(exit, at=2.0):
    """A callback that raises for one of its arguments."""

    def raises(x):
        if float(x) == at:
            raise exit("on purpose")
        return np.float32(x + 1)

    return raises


def _one(raises, shape):
    return fx.jit(lambda x: fx.callback(raises, shape, x)), jnp.float32(2)


def _some_lanes(raises, shape):
    def one(x):
        return jax.lax.cond(x > 1, lambda x: (fx.callback(raises, shape, x), x)[1], lambda x: x, x)

    return fx.jit(jax.vmap(one)), jnp.arange(4.0)


CASES = [*((_one, exit) for exit in EXITS), (_some_lanes, KeyboardInterrupt)]
each = pytest.mark.parametrize("program, exit", CASES)


def _check(failure, exit):
    assert type(failure) is fx.EffectError
    assert type(failure.__cause__) is exit and str(failure.__cause__) == "on purpose"
    assert "`_raises.<locals>.raises`" in str(failure) and f"{__file__}:" in str(failure)


@each
def test_exit_of_a_callback_with_results_is_raised_by_the_call(program, exit):
    """The call raises it, once, with the line and the function; the drain's threads go on."""
    f, x = program(_raises(exit), F32)
    drains = {thread for thread in threading.enumerate() if thread.name == "effects-drain"}
    with pytest.raises(fx.EffectError) as info:
        jax.block_until_ready(f(x))
    _check(info.value, exit)
    fx.effects_barrier(timeout=60)  # there is nothing left to raise
    assert all(thread.is_alive() for thread in drains)
    good_program_runs()


@each
def test_exit_of_a_queued_callback_is_raised_by_the_barrier(program, exit):
    """The barrier raises it, once."""
    f, x = program(_raises(exit), None)
    f(x)
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    _check(info.value, exit)
    fx.effects_barrier(timeout=60)
    good_program_runs()
