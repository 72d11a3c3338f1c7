"""Asynchronous callbacks that wait for what cannot come before their own program ends."""

from __future__ import annotations

import contextlib
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.helpers import meet_barrier
from tests.internals import runtime

P = jax.P
F32 = jax.ShapeDtypeStruct((), np.float32)
EIGHT = jax.ShapeDtypeStruct((8,), np.float32)
FREED = "waits for what JAX computes"


@pytest.fixture(autouse=True)
def _little_patience():
    with fx.config.override(stall_seconds=0.3, stall_fail_seconds=0.6):
        yield


def _settle():
    """What a function was about goes on when its program has ended, or fails; that is not what is tested."""
    with contextlib.suppress(fx.EffectError):
        meet_barrier()


def _mesh():
    return jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))


def _sharded():
    return jax.device_put(jnp.arange(8.0), jax.NamedSharding(_mesh(), P("x")))


def _over_devices(fn):
    """A program over four devices that awaits this function, asynchronously."""
    return fx.jit(lambda y: fx.async_done(fx.async_callback(fn, EIGHT, y)))


_double = jax.jit(lambda y: y * 2)


def _waits_within(x):
    """In a callback of a program that the function calls, on one device."""
    fx.jit(lambda c: fx.callback(lambda c: (np.asarray(_double(x)), c)[1], F32, c))(jnp.float32(1))


_WAYS = {
    "numpy": lambda x: np.asarray(_double(x)),
    "method": lambda x: _double(x).block_until_ready(),
    "effects": fx.jit(lambda x: (fx.print("{}", x), x * 2)[1]),
    "callback": fx.jit(lambda x: fx.callback(lambda x: x, EIGHT, x)),
    "asynchronous callback": _over_devices(lambda x: x),
    "nested": _waits_within,
}


@pytest.mark.parametrize("way", _WAYS)
def test_function_that_waits_for_the_devices_that_wait_for_it(way):
    """Its program ends with an error that names the function and its line, as that of an ordinary callback does."""
    x = _sharded()

    def stuck(y):
        _WAYS[way](x)
        return y

    with pytest.raises(fx.EffectError, match=FREED) as caught:
        _over_devices(stuck)(x)
    if way != "nested":  # the program that is ended may be the inner one
        assert "stuck` at " in str(caught.value) and f"{__file__}:" in str(caught.value)
    _settle()
    assert _over_devices(lambda y: y + 1)(x)[0] == 1


_OWN_RESULT = """
import faulthandler; faulthandler.dump_traceback_later(100, exit=True)
import threading, jax, numpy as np, jax.numpy as jnp, effects as fx

fx.config.stall_seconds = fx.config.stall_fail_seconds = 0.7
F32, returned = jax.ShapeDtypeStruct((), np.float32), threading.Event()

def stuck(y):
    returned.wait(60)
    result.block_until_ready()
    return y

f = jax.jit(lambda y: {ask} + (jnp.ones((256, 256)) @ jnp.ones(256))[0])
result = f(jnp.float32(1))
returned.set()
try:
    result.block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("ask", ["fx.callback(stuck, F32, y)", "fx.async_done(fx.async_callback(stuck, F32, y))"])
def test_function_that_waits_for_what_its_program_returns(ask):
    """On one device, in a program of JAX's, whose call returns before its end."""
    done = run_forked(_OWN_RESULT.format(ask=ask), timeout=150)
    assert re.search("`stuck` at .* waits for what JAX computes", done.stdout), done.stderr[-3000:]


def test_barrier_of_all_threads_does_not_wait_for_its_own_program(lines):
    """What comes after the done comes when the function has returned."""

    def function(y):
        fx.print("in the function")
        fx.effects_barrier(all_threads=True, timeout=100)
        return y

    def f(y):
        future = fx.async_callback(function, F32, y)
        fx.print("between")
        fx.print("after {}", fx.async_done(future))

    assert lines(fx.jit(f), np.float32(1)) == ["between", "in the function", "after 1.0"]


def test_device_that_is_freed_keeps_no_other_waiting():
    """Its program ends on one device with an error; the others wait for that device in an exchange."""
    x = _sharded()

    def body(y):
        def wait(y):
            return fx.async_done(fx.async_callback(lambda y: (np.asarray(_double(x)), y)[1], F32, y))

        first = jax.lax.axis_index("x") == 0
        y = y + jax.lax.cond(first, wait, lambda y: y, y[0])
        return fx.async_done(fx.psum_start(y, "x"))

    with pytest.raises(fx.EffectError, match=FREED):
        fx.jit(jax.shard_map(body, mesh=_mesh(), in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)
    _settle()


def test_barrier_that_gives_up_names_the_function():
    """Once, by the line that starts it, whether its program has come to the done or not."""
    began, goes_on = threading.Event(), threading.Event()

    def endless(y):
        began.set()
        assert goes_on.wait(100)
        return y

    f = fx.jit(lambda y: fx.async_done(fx.async_callback(endless, F32, y)))
    thread = threading.Thread(target=f, args=(np.float32(1),))
    thread.start()
    try:
        assert began.wait(60)
        with pytest.raises(fx.BarrierTimeout) as caught:
            fx.effects_barrier(timeout=0.1, all_threads=True)
        line = f.__wrapped__.__code__.co_firstlineno
        named = f"`{test_barrier_that_gives_up_names_the_function.__name__}.<locals>.endless` at {__file__}:{line}"
        assert f"the asynchronous callback {named}, which runs" in str(caught.value)
        assert str(caught.value).partition("This waits")[0].count("endless") == 1
    finally:
        goes_on.set()
        thread.join(100)
    meet_barrier()
    assert runtime.drain.functions() == []
