"""Callbacks that raise, and what must hold afterwards."""

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx

F32 = jax.ShapeDtypeStruct((), jnp.float32)
GOOD = ["good 0.0", "good 1.0"]


class Boom(Exception):
    pass


def good_program_runs():
    """The state is clean: a program of all kinds of effects comes out whole, and no barrier says anything."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):

        @fx.jit
        def good(x):
            fx.print("good {}", x)
            return fx.callback(lambda x: x + np.float32(1), F32, x)

        assert good(good(jnp.float32(0))) == 2
        fx.effects_barrier(timeout=60)
    assert out.getvalue().splitlines() == GOOD
    fx.effects_barrier(all_threads=True, timeout=60)
