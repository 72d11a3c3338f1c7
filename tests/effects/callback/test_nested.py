"""What a callback may do: compute, issue effects, and wait for them."""

import functools
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.helpers import meet_barrier

F32 = jax.ShapeDtypeStruct((), jnp.float32)
pytestmark = pytest.mark.usefixtures("path")
_matmul = jax.jit(lambda a: (a @ a).sum())
_inner = fx.jit(lambda x: (fx.print("inner {}", x), x + 1)[1])
_inner_sync = fx.jit(lambda x: fx.callback(lambda y: y * 2, F32, x) + 1)
_plain = jax.jit(lambda x: (fx.print("plain {}", x), x + 1)[1])
_plain_sync = jax.jit(lambda x: fx.callback(lambda y: y * 2, F32, x) + 1)


def _and_barrier(y, **options):
    fx.effects_barrier(**options)
    return y


USES = {  # each of these is x + 1
    "jnp": lambda x: jnp.sin(x) * 0 + jax.device_put(x + 1, jax.devices()[1]),
    "matmul": lambda x: _matmul(jnp.ones((512, 512))) * 0 + x + 1,
    "print": lambda x: (fx.print("eager {}", x), x + 1)[1],
    "eager callback": lambda x: fx.callback(lambda y: y + 1, F32, x),
    "fx.jit": _inner,
    "fx.jit, barrier": lambda x: _and_barrier(_and_barrier(_inner(x)), all_threads=True),
    "awaited fx.jit": lambda x: _inner_sync(x) - x,
    "jax.jit, barrier": lambda x: _and_barrier(_plain(x)),
    "awaited jax.jit": lambda x: _plain_sync(x) - x,  # waits for a second in each call
}


@pytest.mark.parametrize("outer", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("kind", ["sync", "queued"])
@pytest.mark.parametrize(
    "use", [pytest.param(use, marks=pytest.mark.slow if use == "awaited jax.jit" else ()) for use in USES]
)
def test_callback_may_use(use, kind, outer):
    """JAX, prints, programs with effects of their own and barriers, from inside a callback: nothing hangs."""
    seen = []

    def called(x):
        seen.append(float(USES[use](x)))
        return np.float32(seen[-1])

    def f(x):
        fx.print("before {}", x)
        if kind == "sync":
            x = fx.callback(called, F32, x)
        else:
            fx.callback(lambda x: (called(x), None)[1], None, x)
        fx.print("after {}", x)
        return x

    f = outer(f)
    for i in range(3):
        f(jnp.float32(i))
    meet_barrier()
    if outer is not fx.jit and "jax.jit" in use:
        # A function that JAX's program calls and that waits for another program of JAX's lets the rest pass it.
        seen.sort()
    assert seen == [i + 1 for i in range(3)]


@pytest.mark.parametrize("outer", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_a_slow_callback_is_not_passed(outer):
    """A program of JAX's that waits for its own callback, which comes behind one that takes a while."""
    seen, later = [], threading.Event()

    def slow(x):
        was_passed = later.wait(0.3)
        seen.append("passed" if was_passed else "slow")

    def asked(x):
        seen.append("asked")
        later.set()
        return x

    outer(lambda x: fx.callback(slow, None, x))(jnp.float32(1))
    jax.jit(lambda x: fx.callback(asked, F32, x))(jnp.float32(2)).block_until_ready()
    meet_barrier()
    assert seen == ["slow", "asked"]


@pytest.mark.parametrize("order", ["thread", "process"])
def test_a_trace_may_wait_for_a_callback(order, lines):
    """Its own program comes first in the order, and is not there yet."""

    def fail():
        raise ValueError("as asked")

    @functools.partial(fx.jit, static_argnums=1)
    def f(x, called):
        with jax.ensure_compile_time_eval():
            y = fx.callback(called, F32)
        fx.print("{}", x)
        return x + y

    def run():
        fx.print("before")
        assert f(jnp.float32(1), lambda: np.float32(4)) == 5

    with fx.config.override(order=order):
        assert lines(run) == ["before", "1.0"]
        with pytest.raises(fx.EffectError, match="as asked"):
            f(jnp.float32(1), fail)
        fx.effects_barrier()


def _asking(call):
    """A function with a callback that calls the function again, by `call(itself)`, until x is 0."""

    def f(x):
        return fx.callback(ask, F32, x) + 1

    def ask(x):
        return np.asarray(called(np.float32(x - 1))) if x > 0 else np.float32(7)

    called = call(f)
    return called


@pytest.mark.parametrize(
    "call",
    [
        fx.jit,
        lambda f: lambda x: fx.jit(f)(x),
        lambda f: fx.jit(f, in_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        lambda f: fx.jit(f).lower(np.float32(0)).compile(),
    ],
    ids=["jitted once", "jitted at each call", "one sharding", "compiled"],
)
def test_callback_calls_its_own_function(call):
    """Already in the function's first call, which JAX has not finished then."""
    f = _asking(call)
    assert f(np.float32(3)) == 11
    assert f(np.float32(5)) == 13


def test_callback_calls_as_fast_as_others_do():
    """Once a function has been called, a callback's calls of it go through no Python of JAX's."""
    called = []

    def ask(x):
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
        try:
            return np.asarray(_inner_sync(x))
        finally:
            sys.setprofile(None)

    f = fx.jit(lambda x: fx.callback(ask, F32, x))
    for _ in range(3):  # in the first, a first call is under way
        called.clear()
        assert f(np.float32(1)) == 3
    assert any("dispatch" in name for name in called) and not any("pjit" in name for name in called)


A_THOUSAND = """
import faulthandler; faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, numpy as np, effects as fx

jax.config.update("jax_cpu_enable_async_dispatch", ASYNCHRONOUS)
F32 = jax.ShapeDtypeStruct((), "float32")
matmul = jax.jit(lambda a: (a @ a).sum())
inner = fx.jit(lambda x: (fx.print("inner {}", x), x + 1)[1])
a = jnp.ones((256, 256))

def called(x):
    matmul(a)
    jax.device_put(x, jax.devices()[1])
    return np.asarray(inner(x))

f = fx.jit(lambda x: fx.callback(called, F32, x))
g = fx.jit(lambda x: (fx.callback(lambda x: (called(x), None)[1], None, x), x + 1)[1])
x = jnp.float32(0)
for i in range(500): x = g(f(x))
fx.effects_barrier()
print(float(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", ["True", "False"])
def test_a_thousand_callbacks_that_use_jax(asynchronous):
    """A matmul, a transfer and a program with a print of its own in every callback, a thousand times: no hang."""
    done = run_forked(A_THOUSAND.replace("ASYNCHRONOUS", asynchronous))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*(f"inner {float(i)}" for i in range(1000)), "1000.0"]
