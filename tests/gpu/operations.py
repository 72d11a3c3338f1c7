"""Asynchronous operations, and handlers of the user's that print, on JAX's first device: see `programs.py`."""

from __future__ import annotations

import ctypes
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.gpu.programs import FLOAT, PLATFORM
from tests.helpers import build_handlers, meet_barrier

fx.register_custom_call("gpu.announce", (ctypes.CDLL(str(build_handlers())), "announce"), platform=PLATFORM)


def test_what_handlers_print_is_shown_once():
    """A handler runs ahead of its place, so what it prints has no order with the effects around its call."""

    @fx.jit
    def f(n):
        def turn(i, x):
            fx.print("turn {}", i)
            fx.custom_call("gpu.announce", (), x, label="here", effect="print")
            return x + 1

        return jax.lax.fori_loop(0, n, turn, 1.0)

    with fx.capture(suppress=True) as records:
        f(3)
    texts = [record.text for record in records if record.event is None]
    assert [text for text in texts if text.startswith("turn")] == ["turn 0", "turn 1", "turn 2"]
    assert sorted(text for text in texts if not text.startswith("turn")) == ["announced here"] * 3


def test_asynchronous_callbacks(lines):
    """A function of the host's runs beside the device. What it prints comes where it is done, as do its results."""
    begun, passed, go_on = (threading.Event() for _ in range(3))

    def double(x):
        begun.set()
        assert go_on.wait(120)
        print("doubling", x)
        return 2 * x

    @fx.jit
    def f(x):
        future = fx.async_callback(double, FLOAT, x)
        fx.print("meanwhile {}", x)
        y = x + 1
        fx.callback(lambda: passed.set(), None)
        return y + fx.async_done(future)

    got = []
    for x in (0.0, 1.0, 2.0):
        begun.clear(), passed.clear(), go_on.clear()
        threading.Thread(target=lambda: (begun.wait(120), passed.wait(120), go_on.set())).start()
        assert lines(lambda x=x: got.append(float(f(x)))) == [f"meanwhile {x}", f"doubling {x}"]
    assert got == [1.0, 4.0, 7.0]


def test_futures_that_a_loop_carries(lines):
    """Each turn is done with what the last one started, of values and of functions, under `vmap` too."""

    def double(x):
        fx.print("doubling {}", x)
        return 2 * x

    def f(x):
        def turn(i, carry):
            x, values, function = carry
            fx.print("turn {}", i)
            y = fx.async_done(values) + fx.async_done(function)
            return x + y, fx.async_start(jnp.negative, y), fx.async_callback(double, FLOAT, y)

        first = x, fx.async_start(jnp.negative, x), fx.async_callback(double, FLOAT, x)
        x, values, function = jax.lax.fori_loop(0, 3, turn, first)
        return x, fx.async_done(values), fx.async_done(function)

    got = []
    assert lines(lambda: got.append(fx.jit(f)(1.0))) == [
        *("turn 0", "doubling 1.0", "turn 1", "doubling 1.0", "turn 2", "doubling 1.0"),
        "doubling 1.0",
    ]
    assert [float(x) for x in got[0]] == [4.0, -1.0, 2.0]
    with fx.capture(suppress=True):
        x, values, function = fx.jit(jax.vmap(f))(jnp.array([1.0, 2.0]))
    assert (x.tolist(), values.tolist(), function.tolist()) == ([4.0, 8.0], [-1.0, -2.0], [2.0, 4.0])


def test_operations_outside_of_jit():
    """Each is a program of its own there, so that what is in flight goes from one to the next."""
    for jit in (jax.jit, lambda f: f):
        f = jit(lambda x: fx.async_done(fx.async_start(lambda x: x + 1, x)))
        assert float(f(jnp.float32(1))) == 2
        g = jit(lambda x: fx.async_done(fx.async_callback(lambda x: x + 1, FLOAT, x)))
        assert float(g(jnp.float32(1))) == 2
    meet_barrier()


def test_operation_that_fails_is_raised_for_its_program():
    """No later program hears of it."""
    forge = jax.jit(lambda x: fx.async_done(jax.tree.map(lambda ticket: ticket * 0 + 9e5, start(x))))

    def start(x):
        return fx.async_start(jnp.sin, x)

    jax.block_until_ready(forge(1.0))
    with pytest.raises(fx.EffectError, match="was not started, or was done before"):
        fx.effects_barrier(all_threads=True)
    assert float(fx.jit(lambda x: fx.async_done(start(x)))(0.0)) == 0
    meet_barrier()
