"""JAX's own callbacks outside of jitted functions: at once, and behind what the thread's programs have shown.

The oracle has them between dispatches. Here they are where it cannot say them.
"""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.oracle.language import EAGER
from tests.oracle.runners import eager_effect

EVERY_KIND = pytest.mark.parametrize("kind", EAGER)


@fx.jit
def inside(x):
    jax.lax.fori_loop(0, 3, lambda i, _: jax.debug.print("inside {} {}", x, i), None)


@EVERY_KIND
@pytest.mark.parametrize("asks", [True, False])
def test_in_a_callback(kind, asks, lines):
    """Behind the programs that the callback has called, and ahead of what comes behind the callback."""

    def call(x):
        inside(x)
        eager_effect(kind, "outside", int(x))
        inside(x + 1)
        return np.int32(x)

    @fx.jit
    def f(x):
        fx.print("ahead {}", x)
        fx.callback(call, jax.ShapeDtypeStruct((), np.int32), x) if asks else fx.callback(
            lambda x: call(x) and None, None, x
        )
        fx.print("behind {}", x)

    calls = [f"inside {n} {i}" for n in (4, 5) for i in range(3)]
    assert lines(lambda: f(jnp.int32(4))) == ["ahead 4", *calls[:3], "outside 4", *calls[3:], "behind 4"]


@EVERY_KIND
def test_while_a_function_is_traced(kind, lines):
    """What is evaluated while a program is compiled is behind the programs before it."""

    def f(x):
        with jax.ensure_compile_time_eval():
            eager_effect(kind, "outside", 7)
        fx.print("after {}", x)

    def run():
        inside(1)
        fx.jit(f)(jnp.int32(2))

    assert lines(run) == [*(f"inside 1 {i}" for i in range(3)), "outside 7", "after 2"]


@EVERY_KIND
def test_transformations(kind, lines):
    """Under `vmap` and `grad` of no program: for each lane, as JAX has it."""

    def f(x):
        eager_effect(kind, "outside", 7)
        return x * 1.0

    def run():
        for n in range(3):
            inside(n)
            jax.grad(f)(1.0)
            jax.vmap(f)(jnp.arange(2.0))

    assert lines(run) == [
        line for n in range(3) for line in (*(f"inside {n} {i}" for i in range(3)), *["outside 7"] * 2)
    ]


def _long(x):
    """It takes a while, and has its line at the end."""
    y = jax.lax.fori_loop(0, 100, lambda i, a: jnp.tanh(a @ a), jnp.full((300, 300), x))
    jax.debug.print("inside {}", x + 0 * y[0, 0])
    return x


CALLS = {
    "jit": lambda f, x: f(x),
    "grad": lambda f, x: jax.grad(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(x[None]),
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "vjp": lambda f, x: jax.vjp(f, x)[1](x),
    "scan": lambda f, x: jax.lax.scan(lambda c, _: (f(c), None), x, length=1),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "compiled": lambda f, x: f.lower(x).compile()(x),
}
"""Ways to call a function of `fx.jit` outside of programs: JAX itself dispatches some."""

CONTROL_FLOW = {
    "none": lambda f: f(),
    "cond": lambda f: jax.lax.cond(True, f, lambda: None),
    "switch": lambda f: jax.lax.switch(1, [lambda: None, f]),
    "scan": lambda f: jax.lax.scan(lambda c, _: (f(), c)[::-1], 0, length=1),
    "while": lambda f: jax.lax.while_loop(lambda i: i < 1, lambda i: (f(), i + 1)[1], 0),
    "fori": lambda f: jax.lax.fori_loop(0, 1, lambda i, c: (f(), c)[1], 0),
}


@pytest.mark.parametrize("kind", ["jax_print", "jax_print_ordered", "jax_io_ordered"])
@pytest.mark.parametrize("flow", CONTROL_FLOW)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_and_control_flow(call, flow, kind, lines):
    """Whoever dispatches the program that is called before, and the callback that comes then."""
    f = fx.jit(_long)

    def run():
        CALLS[call](f, jnp.float32(1))
        CONTROL_FLOW[flow](lambda: eager_effect(kind, "outside", 1))

    assert lines(run) == ["inside 1.0", "outside 1"]


def test_other_threads_are_not_waited_for(lines):
    """Else a thread that holds what another one's callback wants would wait for itself."""
    gate = threading.Event()
    held = threading.Thread(target=lambda: fx.jit(lambda: fx.callback(lambda: gate.wait(60) and None, None))())

    def run():
        held.start()
        held.join()
        eager_effect("jax_print", "outside", 1)
        gate.set()

    assert lines(run) == ["outside 1"]


@pytest.mark.parametrize("order", ["thread", "process"])
@pytest.mark.parametrize("jit", [jax.jit, fx.jit])
def test_nothing_is_waited_for_in_a_function_that_jax_calls_back(jit, order, lines):
    """It may be called by a program with effects of ours, for which it would wait in vain."""

    def call(x):
        eager_effect("jax_print", "outside", int(x))
        return x

    @jit
    def f(x):
        fx.print("ahead {}", x)
        y = jax.pure_callback(call, jax.ShapeDtypeStruct((), np.int32), x)
        fx.print("behind {}", y)

    with fx.config.override(order=order):
        assert sorted(lines(lambda: f(jnp.int32(3)))) == ["ahead 3", "behind 3", "outside 3"]
