"""Asynchronous callbacks: they begin at once, and their effects come in the place of their done."""

import re
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.internals import Workers, runtime

F32 = jax.ShapeDtypeStruct((), jnp.float32)


def shown(x):
    """Doubles, and says so."""
    fx.print("doubling {}", x)
    return np.float32(2 * x)


def test_a_function_runs_while_the_program_goes_on(lines):
    """What comes after the start happens while the function waits for it."""
    goes_on = threading.Event()

    def wait(x):
        assert goes_on.wait(60)
        return x

    @fx.jit
    def f(x):
        future = fx.async_callback(wait, F32, x)
        fx.callback(lambda x: goes_on.set(), None, x + 1)
        y = fx.callback(lambda x: x, F32, x)  # waits until the one before it has run
        return y + fx.async_done(future)

    assert f(1.0) == 2.0


def test_effects_of_the_function_come_in_the_place_of_the_done(lines):
    """Whenever it runs: here, before the program has come to its second print."""
    has_run = threading.Event()

    def early(x):
        fx.print("in the function: {}", x)
        fx.jit(lambda x: fx.print("in its program: {}", x))(x)
        has_run.set()
        return x

    def f(x):
        fx.print("before")
        future = fx.async_callback(early, F32, x)
        x = fx.callback(lambda x: has_run.wait(60) and x, F32, x)
        fx.print("between {}", x)
        y = fx.async_done(future)
        fx.print("after {}", y)

    expected = ["before", "between 1.0", "in the function: 1.0", "in its program: 1.0", "after 1.0"]
    assert lines(fx.jit(f), 1.0) == expected


def test_a_function_may_wait_for_its_own_effects(lines):
    """For the results of a callback of a program that it calls, and at a barrier."""

    def function(x):
        y = fx.jit(lambda x: fx.callback(lambda x: np.float32(x + 1), F32, x))(x)
        fx.print("y = {}", y)
        fx.effects_barrier()
        return np.asarray(y)

    def f(x):
        future = fx.async_callback(function, F32, x)
        fx.print("between")
        fx.print("done: {}", fx.async_done(future))

    assert lines(fx.jit(f), 1.0) == ["between", "y = 2.0", "done: 2.0"]


def test_several_run_at_once():
    """As many as are started: each waits here for all of them."""
    together = threading.Barrier(5)

    def meet(x):
        together.wait(60)
        return x

    @fx.jit
    def f(x):
        futures = [fx.async_callback(meet, F32, x + i) for i in range(5)]
        return sum(fx.async_done(future) for future in reversed(futures))

    assert f(0.0) == 10.0


def test_while_loop_carries_it(lines):
    """From turn to turn, also in a program that was compiled before its call."""

    def f(x):
        def turn(carry):
            future, _ = carry
            y = fx.async_done(future)
            return fx.async_callback(shown, F32, y), y

        return fx.async_done(jax.lax.while_loop(lambda c: c[1] < 3, turn, (fx.async_callback(shown, F32, x), x))[0])

    got = []
    for call in (fx.jit(f), fx.jit(f).lower(1.0).compile()):
        assert lines(lambda call=call: got.append(call(1.0))) == [f"doubling {x}" for x in (1.0, 2.0, 4.0)]
    assert got == [8.0, 8.0]


def test_lanes(lines):
    """Effects come lane by lane; where a predicate differs, for those lanes that are there."""

    def f(x):
        return fx.async_done(fx.async_callback(shown, F32, x))

    assert lines(lambda: fx.jit(jax.vmap(f))(jnp.arange(3.0))) == ["doubling 0.0", "doubling 1.0", "doubling 2.0"]
    assert fx.jit(jax.vmap(lambda x: f(3.0)))(jnp.arange(2.0)).tolist() == [6, 6]
    fx.effects_barrier()
    some = jax.vmap(lambda x: jax.lax.cond(x > 1, f, lambda x: x, x))
    assert lines(lambda: fx.jit(some)(jnp.arange(4.0))) == ["doubling 2.0", "doubling 3.0"]


def test_array_that_is_sharded_automatically(lines):
    """There is one call, of the whole array."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def whole(x):
        return x * fx.async_done(fx.async_callback(lambda x: (fx.print("{}", x.shape[0]), x.sum())[1], F32, x))

    x, got = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("i"))), []
    assert lines(lambda: got.append(fx.jit(whole)(x))) == ["8"]
    assert got[0].tolist() == [28.0 * i for i in range(8)]


def test_updates_do_not_wait_for_the_function():
    """Any number of them, in a program whose callback only then lets the function go on."""
    goes_on = threading.Event()

    def hold(x):
        assert goes_on.wait(60)
        return x

    @fx.jit
    def f(x):
        future = fx.async_callback(hold, F32, x)
        for _ in range(3):
            future = fx.async_update(future)
        fx.callback(goes_on.set)
        return fx.async_done(future)

    assert f(5.0) == 5.0


def test_errors():
    """What the function raises, or returns, is raised by the call of the program, with the line that started it."""

    def fail(x):
        raise OSError("no such thing")

    def start(fn):
        return fx.jit(lambda x: fx.async_done(fx.async_callback(fn, F32, x, name="named")))

    with pytest.raises(fx.EffectError, match=r"The callback `named` at .*test_callbacks.py:\d+, in .* raised OSError"):
        start(fail)(1.0)
    with pytest.raises(fx.EffectError, match=r"returned float32\[3\], and its program expects float32"):
        start(lambda x: np.zeros(3, np.float32))(1.0)
    fx.effects_barrier()
    with pytest.raises(fx.NotDifferentiable, match="asynchronous callback"):
        fx.jit(jax.grad(start(lambda x: x)))(1.0)
    with pytest.raises(TypeError, match="was given 3 as its function"):
        fx.jit(lambda x: fx.async_callback(3, F32, x))(1.0)
    with pytest.raises(TypeError, match="was given 3 as its function"):
        fx.jit(lambda x: fx.async_start(3, x))(1.0)
    with pytest.raises(TypeError, match="takes the future that a start gave"):
        fx.jit(fx.async_done)(1.0)


def test_outside_of_fx_jit(lines):
    """In programs that JAX dispatches, and in none."""

    def f(x):
        future = fx.async_callback(shown, F32, x)
        kept = fx.async_start(lambda x: x + 1, x)
        return fx.async_done(future) + fx.async_done(kept)

    got = []
    assert lines(lambda: got.append(jax.jit(f)(1.0))) == ["doubling 1.0"]
    assert lines(lambda: got.append(f(1.0))) == ["doubling 1.0"]
    assert got == [4.0, 4.0]
    assert jax.vmap(fx.jit(f))(jnp.arange(2.0)).tolist() == [1.0, 4.0]
    fx.effects_barrier()
    for _ in range(20):  # and a barrier waits for what comes after
        assert lines(jax.jit(lambda x: fx.print("x = {}", x)), 1.0) == ["x = 1.0"]


def test_many_lanes_begin_while_they_are_done():
    """The done of one lane may come while later ones are still to begin, in another thread."""
    program = jax.jit(jax.vmap(lambda x: fx.async_done(fx.async_callback(lambda x: np.float32(2 * x), F32, x))))
    for _ in range(30):
        assert program(jnp.arange(100.0)).tolist() == [2 * i for i in range(100)]


def test_what_a_failed_program_has_started_is_not_kept():
    """No done asks for what the function has returned, which is dropped."""
    begun, dropped = threading.Event(), threading.Event()

    def start(x):
        begun.set()  # it would not be called any more if the program had failed before
        returned = np.array(x)
        weakref.finalize(returned, dropped.set)
        return returned

    def fail(x):
        assert begun.wait(60)
        raise ValueError("as asked")

    @fx.jit
    def f(x):
        future = fx.async_callback(start, F32, x)
        x = x + fx.callback(fail, F32, x)
        return x + fx.async_done(future)

    with pytest.raises(fx.EffectError, match="as asked"):
        f(1.0)
    fx.effects_barrier()
    assert dropped.wait(60)


NEVER_DONE = """
import jax, jax.numpy as jnp, numpy as np, effects as fx

def shown(x):
    fx.print("in the function: {}", x)
    return np.float32(x)

def start(x):
    fx.async_callback(shown, jax.ShapeDtypeStruct((), jnp.float32), x)
    fx.print("started")

for call in (jax.jit(start), start):
    call(1.0)
    fx.effects_barrier(all_threads=True, timeout=60)
    fx.effects_barrier(timeout=60)
print("done")
"""


def test_what_is_never_done_holds_up_no_barrier():
    """In programs that JAX dispatches, and in none, nothing checks it before. What the function shows is held back."""
    done = run_forked(NEVER_DONE)
    assert done.stdout.splitlines()[:3] == ["started", "started", "done"], done.stderr
    assert sorted(done.stdout.splitlines()[3:]) == ["in the function: 1.0"] * 2


def test_value_is_tied_to_every_start_ahead_of_its_use():
    """What stands behind a second start stays there, also if it takes what was tied to the first one."""

    def f(x):
        first = fx.async_callback(lambda x: x, F32, x)
        y = x * 2
        second = fx.async_callback(lambda x: x, F32, x)
        z = x * 3
        return fx.async_done(first) + fx.async_done(second) + y + z

    text = fx.jit(f).lower(1.0).as_text()
    starts = re.findall(r"(%\d+):2 = stablehlo.custom_call @effects_begin", text)
    tied = [re.search(rf"(%\d+) = stablehlo.custom_call @effects_after\({start}#1, ", text)[1] for start in starts]
    assert re.findall(r"stablehlo.multiply (%\d+)", text) == tied


def test_no_thread_for_a_callback_is_an_error(monkeypatch):
    """Where the process may have no more threads, the call raises an error, and works again when it may."""
    function = fx.jit(lambda x: fx.async_done(fx.async_callback(lambda x: started.append(x) or x, F32, x)))
    started, start = [], threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("effects-async"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(runtime.drain.beside, "_workers", Workers("effects-async"))  # none is idle
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(fx.EffectError, match="No thread can be started"):
            function(1.0)
    assert started == []
    assert function(2.0) == 2 and started == [2]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_update_without_a_result_calls_nothing(jit):
    """It stands where the program has it, and the function runs once."""

    def f(x):
        future = fx.async_callback(lambda x: (called.append(1), 2 * x)[1], F32, x)
        return fx.async_done(fx.async_update(future))

    called = []
    assert float(jit(f)(1.5)) == 3 and called == [1]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
@pytest.mark.parametrize("uses", [True, False])
def test_linear_functions_refuse_it(jit, uses):
    """A transposed function has no value to pass on, and a callback is not linear."""

    def linear(x):
        got = fx.async_done(fx.async_callback(lambda x: 3 * np.asarray(x), jax.ShapeDtypeStruct((), jnp.float32), x))
        return got if uses else x

    with pytest.raises(fx.NotDifferentiable, match="asynchronous callback"):
        jit(lambda y: jax.linear_transpose(linear, y)(y))(7.0)
