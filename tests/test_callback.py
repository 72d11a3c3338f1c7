"""Callbacks: when they run, what they get, what they give back, and what they may do."""

import contextlib
import contextvars
import gc
import operator
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from effects.dispatch.draining import watchdog
from tests.helpers import run_python

F32 = jax.ShapeDtypeStruct((), jnp.float32)
INT = jax.ShapeDtypeStruct((), jnp.int32)


def _barrier() -> None:
    fx.effects_barrier(timeout=120)


@pytest.fixture(params=["fx.jit", "jax.jit", "eager"])
def jit(request):
    """The three ways in which a function with effects is called."""
    return {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}[request.param]


# Without results


def test_queued_callback_comes_in_the_order_of_the_program(jit, lines):
    """A callback without results takes its place among prints."""

    def f(x):
        fx.print("before {}", x)
        fx.callback(lambda x: print(f"called {x}"), None, x)
        fx.print("after {}", x)

    assert lines(jit(f), jnp.float32(1)) == ["before 1.0", "called 1.0", "after 1.0"]


def test_queued_callback_does_not_hold_the_program_up():
    """The program ends while its callback has not begun."""
    gate, seen = threading.Event(), []

    @fx.jit
    def f(x):
        fx.callback(lambda x: seen.append(gate.wait(60)), None, x)
        return x + 1

    assert f(jnp.float32(1)) == 2  # waits for the result, which waits for nobody
    assert seen == []
    gate.set()
    _barrier()
    assert seen == [True]


def test_call_waits_for_results_and_not_for_what_is_queued():
    """A call whose program waits for a callback returns when it has its result, whatever is queued after it."""
    gate, seen = threading.Event(), []

    @fx.jit
    def f(x):
        y = fx.callback(lambda x: x + 1, F32, x)
        fx.callback(lambda x: seen.append(gate.wait(60)), None, x)
        return y

    assert f(jnp.float32(1)) == 2 and seen == []
    gate.set()
    _barrier()
    assert seen == [True]


def test_unordered_callbacks_all_come():
    """Unordered calls come in some order, each once."""
    seen = []

    @fx.jit
    def f(n):
        jax.lax.fori_loop(0, n, lambda i, _: fx.callback(lambda i: seen.append(int(i)), None, i, ordered=False), None)

    f(100)
    _barrier()
    assert sorted(seen) == list(range(100))


def test_callback_gets_what_it_was_given(jit):
    """Pytrees, keywords, strings, numbers and None arrive as they were written; arrays as NumPy arrays."""
    seen = []

    def f(x):
        fx.callback(lambda *a, **k: seen.append((a, k)), None, {"x": x, "n": None}, "text", 3, key=(x, 2.5))

    jit(f)(jnp.arange(3))
    _barrier()
    [((tree, text, three), keywords)] = seen
    assert (text, three, tree["n"], keywords["key"][1]) == ("text", 3, None, 2.5)
    for array in (tree["x"], keywords["key"][0]):
        assert type(array) is np.ndarray and array.dtype == np.int32 and array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [0, 1, 10, 1_000_000])
def test_arrays_are_read_only_and_may_be_kept(size):
    """What a callback keeps is its own: no later program changes it, and it cannot be written to."""
    kept = []
    f = fx.jit(lambda x: fx.callback(kept.append, None, x))
    for i in range(3):
        f(jnp.full(size, i, jnp.float32))
    _barrier()
    assert [array.shape for array in kept] == [(size,)] * 3
    assert all((array == i).all() for i, array in enumerate(kept))
    for array in kept:
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array.flags.writeable = True


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "int8", "uint4", "int4", "bool", "complex64", "float8_e4m3fn"]
)
def test_every_dtype_goes_in_and_comes_out(dtype):
    """Narrow types too arrive as they are, and come back."""
    seen = []

    @fx.jit
    def f(x):
        return fx.callback(lambda x: (seen.append(x.dtype), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    x = jnp.array([0, 1, 3], dtype)
    y = f(x)
    assert y.dtype == x.dtype and (np.asarray(y) == np.asarray(x)).all() and seen == [x.dtype]


# With results


def test_results_flow_back(jit):
    """A callback's results are values of the program."""

    def f(x):
        y = fx.callback(lambda x: np.sin(x), F32, x)
        return y * 2

    assert jit(f)(jnp.float32(1)) == np.sin(np.float32(1)) * 2


def test_results_are_any_pytree(jit):
    """Results have the structure that was asked for; numbers of Python's take the type of the result."""
    asked = {"a": F32, "b": (INT, jax.ShapeDtypeStruct((2,), jnp.bool_)), "none": None}

    def f(x):
        return fx.callback(lambda x: {"a": 1, "b": (2, x > 0), "none": None}, asked, x)

    out = jit(f)(jnp.array([-1.0, 1.0]))
    assert (out["a"], out["b"][0], out["b"][1].tolist(), out["none"]) == (1.0, 2, [False, True], None)
    assert (out["a"].dtype, out["b"][0].dtype) == (jnp.float32, jnp.int32)


def test_a_callback_may_be_waited_for_without_results():
    """An empty tree of results: nothing comes back, and the program waits all the same."""
    seen = []

    @fx.jit
    def f(x):
        assert fx.callback(lambda x: (seen.append(1), ())[1], (), x) == ()
        return x

    f(jnp.float32(1))
    assert seen == [1]


def test_sync_callback_waits_for_its_turn(lines):
    """It runs after all that comes before it in the program, and in the programs before."""
    order = []

    @fx.jit
    def first(n):
        def body(i, c):
            fx.callback(lambda i: order.append(("first", int(i))), None, i)
            return c + jnp.sin(c)

        return jax.lax.fori_loop(0, n, body, 1.0)

    @fx.jit
    def second(x):
        fx.callback(lambda: order.append("queued"), None)
        return fx.callback(lambda x: (order.append("sync"), x)[1], F32, x)

    first(200)
    second(jnp.float32(1))
    assert order == [*(("first", i) for i in range(200)), "queued", "sync"]


def test_state_passes_through_a_loop():
    """Each call sees what the one before it did."""
    state = {"sum": 0}

    def add(i):
        state["sum"] += int(i)
        return np.int32(state["sum"])

    f = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, c: fx.callback(add, INT, i), 0))
    assert f(100) == sum(range(100))


@pytest.mark.parametrize("native", [True, False], ids=["native", "callback"])
@pytest.mark.parametrize("results", [1, 2, 3])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_results_may_be_all_that_a_loop_carries(jit, ordered, results, native):
    """From constants on, and in their order: XLA has taken such a body for one that changes nothing."""
    calls = []

    def step(*state):
        calls.append(state)
        if len(calls) > 5:
            raise RuntimeError("the loop has no end")
        return tuple(x + 1 for x in state)

    @jit
    def count():
        shapes = (jax.ShapeDtypeStruct((), jnp.int32),) * results
        start = (jnp.int32(0),) * results
        turn = lambda state: tuple(fx.callback(step, shapes, *state, ordered=ordered))  # noqa: E731
        return jax.lax.while_loop(lambda state: state[0] < 5, turn, start)

    with fx.config.override(native=native):
        assert count() == (5,) * results
    assert calls == [(n,) * results for n in range(5)]


@pytest.mark.parametrize("use", ["cond of while", "predicate", "scan"])
def test_results_decide_control_flow(use):
    """A result may be a condition, a predicate or carried."""
    countdown = iter([True, True, True, False])
    bool_ = jax.ShapeDtypeStruct((), jnp.bool_)

    @fx.jit
    def while_(x):
        return jax.lax.while_loop(lambda c: fx.callback(lambda: next(countdown), bool_), lambda c: c + 1, x)

    @fx.jit
    def cond(x):
        return jax.lax.cond(fx.callback(lambda x: bool(x > 2), bool_, x), lambda: x + 3, lambda: x)

    @fx.jit
    def scan(x):
        def step(c, i):
            return fx.callback(lambda c, i: c + np.float32(i), F32, c, i), i

        return jax.lax.scan(step, x, jnp.arange(3))[0]

    assert {"cond of while": while_, "predicate": cond, "scan": scan}[use](jnp.float32(0)) == {
        "cond of while": 3,
        "predicate": 0,
        "scan": 3,
    }[use]


@pytest.mark.parametrize("ordered", [True, False])
def test_vmap_calls_lane_by_lane(ordered):
    """Under vmap the function runs once for each lane, in order, and results are stacked."""
    seen = []

    def f(x, y):
        return fx.callback(lambda x, y: (seen.append(float(x)), x + y)[1], F32, x, y, ordered=ordered)

    out = fx.jit(jax.vmap(f, in_axes=(0, None)))(jnp.arange(3.0), jnp.float32(10))
    assert seen == [0, 1, 2] and out.tolist() == [10, 11, 12]
    out = fx.jit(jax.vmap(jax.vmap(f, in_axes=(0, None))))(jnp.arange(4.0).reshape(2, 2), jnp.arange(2.0))
    assert out.tolist() == [[0, 1], [3, 4]]


def test_lanes_may_come_from_one_array():
    """A function may return the same array at each call."""
    buffer = np.zeros((), np.float32)

    def fill(x):
        buffer[...] = x
        return buffer

    assert fx.jit(jax.vmap(lambda x: fx.callback(fill, F32, x)))(jnp.arange(4.0)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("method", "shapes"),
    [("expand_dims", [(3, 2), (1,)]), ("broadcast_all", [(3, 2), (3,)]), ("sequential", [(2,), ()])],
)
def test_vmap_method(method, shapes):
    """The other methods call once, with a leading axis."""
    seen = []

    def f(x, y):
        def fn(x, y):
            seen.append([x.shape, y.shape])
            return x + (y[..., None] if y.ndim else y)

        return fx.callback(fn, jax.ShapeDtypeStruct((2,), jnp.float32), x, y, vmap_method=method)

    out = fx.jit(jax.vmap(f, in_axes=(0, None)))(jnp.ones((3, 2)), jnp.float32(1))
    assert out.tolist() == [[2, 2]] * 3 and seen[0] == shapes


def test_results_have_no_derivative():
    """A derivative through a callback is refused with the remedy; around it, it is taken."""

    def f(x):
        return fx.callback(lambda x: x * 2, F32, x)

    with pytest.raises(fx.NotDifferentiable, match="custom_jvp"):
        jax.grad(fx.jit(f))(jnp.float32(1))
    seen = []

    def g(x):
        fx.callback(lambda x: seen.append(float(x)), None, x)
        return x * f(jax.lax.stop_gradient(x))

    assert fx.jit(jax.grad(g))(jnp.float32(3)) == 6
    _barrier()
    assert seen == [3]


def test_what_does_not_depend_on_the_input_may_be_differentiated_around():
    """Arguments whose tangents are zero, such as integers, do not ask for a derivative."""

    def f(x, i):
        return x * fx.callback(lambda i: np.float32(i) + 1, F32, i)

    assert fx.jit(jax.grad(f))(jnp.float32(2), 3) == 4

    def g(x, i):
        return jax.lax.scan(lambda c, i: (f(c, i), None), x, i)[0]

    assert fx.jit(jax.grad(g))(jnp.float32(2), jnp.arange(3)) == 6


def test_custom_jvp_gives_a_callback_a_derivative():
    """The way that the message tells."""

    @jax.custom_jvp
    def sin(x):
        return fx.callback(np.sin, F32, x)

    sin.defjvp(lambda primals, tangents: (sin(*primals), jnp.cos(primals[0]) * tangents[0]))
    assert np.allclose(fx.jit(jax.grad(sin))(jnp.float32(1)), np.cos(1))


# The record, the context, references


def test_pass_record():
    """With `pass_record` the function gets its own record: device, lane, place, line."""
    records = []

    def f(x):
        fx.callback(lambda x, record: records.append(record), None, x, pass_record=True)

    device = jax.devices()[2]
    fx.jit(f)(jax.device_put(jnp.float32(1), device))
    fx.jit(jax.vmap(f))(jnp.arange(2.0))
    _barrier()
    single, *lanes = records
    assert single.effect == "callback" and single.device == device.id and single.lane == () and single.process == 0
    assert single.where.file == __file__ and single.line == f.__code__.co_firstlineno + 1
    assert len(single.token) == 4 and single.args[0] == 1
    assert [record.lane for record in lanes] == [(0,), (1,)]
    assert [record.args[0].tolist() for record in lanes] == [0, 1]


def test_context_of_the_call_is_in_force():
    """A callback sees the contextvars as they were when the program was called."""
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []
    f = fx.jit(lambda: fx.callback(lambda: seen.append(variable.get()), None))
    g = fx.jit(lambda: fx.callback(lambda: (seen.append(variable.get()), np.int32(0))[1], INT))
    token = variable.set("one")
    f()
    variable.set("two")
    f()
    g()
    variable.reset(token)
    f()
    _barrier()
    assert seen == ["one", "two", "two", "unset"]


def test_unordered_print_passes_a_callback_that_runs(capsys):
    """A line without order does not wait for a callback, and both have the context of their calls."""
    gate, begun = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        gate.wait(60)

    @fx.jit
    def f(x):
        fx.callback(slow, None, x)
        fx.print("unordered {}", x, ordered=False)

    f(1)
    assert begun.wait(60)
    f(2)
    gate.set()
    _barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["unordered 1", "unordered 2"]


def test_context_is_each_functions_own():
    """What one function sets in its context, no other sees."""
    variable = contextvars.ContextVar("variable", default=0)
    seen = []

    def count():
        seen.append(variable.get())
        variable.set(variable.get() + 1)

    f = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.callback(count, None), None))
    f(3)
    f(3)
    _barrier()
    assert seen == [0] * 6


def test_reference_passes_its_value():
    """A mutable reference that the function closes over is passed as what it holds at that point."""
    ref = jax.new_ref(jnp.float32(1))
    seen = []

    @fx.jit
    def f():
        fx.callback(lambda x: seen.append(float(x)), None, ref)
        ref[...] += 1
        return fx.callback(lambda x: x, F32, ref)

    assert [float(f()), float(f())] == [2, 3]
    _barrier()
    assert seen == [1, 2]


# What a callback may do


_matmul = jax.jit(lambda a: (a @ a).sum())
_inner = fx.jit(lambda x: (fx.print("inner {}", x), x + 1)[1])
_inner_sync = fx.jit(lambda x: fx.callback(lambda y: y * 2, F32, x) + 1)
_plain = jax.jit(lambda x: (fx.print("plain {}", x), x + 1)[1])
_plain_sync = jax.jit(lambda x: fx.callback(lambda y: y * 2, F32, x) + 1)


def _use_jnp(x):
    return np.asarray(jnp.sin(x) * 0 + jax.device_put(x + 1, jax.devices()[1]))


def _use_matmul(x):
    return np.float32(_matmul(jnp.ones((512, 512)))) * 0 + x + 1


def _use_print_inside(x):
    fx.print("eager {}", x)
    return x + 1


def _use_eager_callback(x):
    return np.asarray(fx.callback(lambda y: y + 1, F32, x))


def _use_fx_jit(x):
    return np.asarray(_inner(x))


def _use_fx_jit_with_barrier(x):
    y = _inner(x)
    fx.effects_barrier()
    fx.effects_barrier(all_threads=True)
    return np.asarray(y)


def _use_sync_fx_jit(x):
    return np.asarray(_inner_sync(x)) - x


def _use_plain_jit_with_barrier(x):
    y = _plain(x)
    fx.effects_barrier()
    return np.asarray(y)


def _use_sync_plain_jit(x):
    return np.asarray(_plain_sync(x)) - x


_uses = [value for name, value in sorted(globals().items()) if name.startswith("_use_")]


@pytest.mark.parametrize("outer", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("kind", ["sync", "queued"])
@pytest.mark.parametrize("use", _uses, ids=lambda use: use.__name__[5:])
def test_callback_may_use(use, kind, outer):
    """JAX, prints, programs with effects of their own and barriers, from inside a callback: nothing hangs."""
    seen = []

    def called(x):
        seen.append(float(use(x)))
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
    for i in range(5):
        f(jnp.float32(i))
    _barrier()
    if outer is not fx.jit and "plain" in use.__name__:
        # A function that JAX's program calls and that waits for another program of JAX's lets the rest pass it.
        seen.sort()
    assert seen == [i + 1 for i in range(5)]


@pytest.mark.parametrize("kind", ["sync", "queued"])
def test_effects_of_a_callback_come_in_its_place(kind, lines):
    """What a callback prints, itself or through programs that it calls, comes between what is before and after it."""

    def called(x):
        print("python")
        fx.print("eager {}", x)
        _inner(x)
        return x

    @fx.jit
    def f(x):
        fx.print("before")
        fx.callback(called if kind == "sync" else lambda x: (called(x), None)[1], F32 if kind == "sync" else None, x)
        fx.print("after")

    expected = ["before", "python", "eager 1.0", "inner 1.0", "after"]
    assert lines(f, jnp.float32(1)) == expected
    assert lines(f, jnp.float32(1)) == expected


def test_nested_to_a_depth(lines):
    """Callbacks in programs in callbacks: each level waits for the one below."""

    def level(n):
        def called(x):
            fx.print(f"down {n}")
            y = np.asarray(fx.jit(lambda x: level(n - 1)(x))(x)) if n else x
            fx.print(f"up {n}")
            return y

        return lambda x: fx.callback(called, F32, x) + 1

    downs, ups = [f"down {n}" for n in range(3, -1, -1)], [f"up {n}" for n in range(4)]
    assert lines(fx.jit(level(3)), jnp.float32(0)) == downs + ups
    assert fx.jit(level(3))(jnp.float32(0)) == 4


def test_queued_callback_runs_a_multi_device_computation():
    """A computation over all devices inside a callback finishes."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("x"))
    seen = []

    def called(x):
        y = jax.device_put(np.arange(8.0, dtype=np.float32) + x, sharding)
        seen.append(float(jax.jit(lambda y: (y * 2).sum())(y)))

    f = fx.jit(lambda x: fx.callback(called, None, x))
    for i in range(5):
        f(jnp.float32(i))
    _barrier()
    assert seen == [2 * (28 + 8 * i) for i in range(5)]


def _sharded():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))


def test_sharded_program_calls_once_for_all_devices():
    """In a program that is sharded over several devices a callback runs once, on the whole value, for all of them."""
    seen = []

    @fx.jit
    def f(x):
        fx.callback(lambda x: seen.append(x.tolist()), None, x)
        return fx.callback(lambda x: (seen.append("sync"), x + 1)[1], jax.ShapeDtypeStruct((8,), jnp.float32), x) * 2

    for _ in range(3):
        assert f(_sharded()).tolist() == [2.0 * (i + 1) for i in range(8)]
    assert seen == [[float(i) for i in range(8)], "sync"] * 3
    g = fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((8,), jnp.float32), x, ordered=False))
    with pytest.raises(NotImplementedError, match="Leave out `ordered=False`"):
        g(_sharded())
    _barrier()


def test_sharded_program_that_waits_lets_earlier_callbacks_use_the_devices():
    """Devices run one program over several of them at a time; one that waits for its turn does not keep them busy."""
    seen = []
    queued = fx.jit(lambda x: fx.callback(lambda: seen.append(float(jax.jit(lambda y: y.sum())(_sharded()))), None))
    waits = fx.jit(lambda x: fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((8,), jnp.float32), x))
    for _ in range(5):
        queued(1.0)
        assert waits(_sharded())[0] == 1
    _barrier()
    assert seen == [28.0] * 5


_double = jax.jit(lambda y: y * 2)
_double_and_print = fx.jit(lambda y: (fx.print("{}", y), y * 2)[1])


def _poll(x):
    y = _double(x)
    while not y.is_ready():
        threading.Event().wait(0.01)


def _fill_the_queue(x):
    for _ in range(100):
        x = _double(x)


def _call_and_compute(results):
    """Waits in a callback of a program on one device."""

    def called(x):
        def compute(c):
            _double(x).block_until_ready()
            return c

        fx.jit(lambda c: fx.callback(compute, results, c))(jnp.float32(1))

    return called


_WAYS = {
    "numpy": lambda x: np.asarray(_double(x)),
    "method": lambda x: _double(x).block_until_ready(),
    "mapped": lambda x: list(map(operator.methodcaller("block_until_ready"), [_double(x)])),
    "function": lambda x: jax.block_until_ready([_double(x)]),
    "operator": lambda x: (x + 1).block_until_ready(),
    "print": lambda x: str(x + 1),
    "compiled": lambda x: _double.lower(x).compile()(x).block_until_ready(),
    "poll": _poll,
    "queue": _fill_the_queue,
    "effects": _double_and_print,
    "callback": fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((8,), jnp.float32), x)),
    "nested": _call_and_compute(F32),
    "nested, queued": _call_and_compute(None),
    "jax's effects": lambda x: (jax.jit(lambda y: jax.debug.print("{}", y))(x), jax.effects_barrier()),
}


@pytest.mark.parametrize("way", _WAYS)
def test_callback_that_waits_for_the_devices_that_wait_for_it(way, monkeypatch):
    """It cannot go on, so its program ends with an error that says why; the next one runs."""
    monkeypatch.setattr(watchdog, "_HOLD_PATIENCE", 1.0)
    monkeypatch.setattr(watchdog, "_IDLE_PATIENCE", 2.0)  # with few processors, the dispatch itself may wait
    x = _sharded()

    def called(y):
        _WAYS[way](x)
        return y

    f = fx.jit(lambda y: fx.callback(called, jax.ShapeDtypeStruct((8,), jnp.float32), y))
    with pytest.raises(fx.EffectError, match="over several devices|does not begin"):
        f(x)
    _settle()
    g = fx.jit(lambda x: fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((8,), jnp.float32), x))
    assert g(x)[0] == 1


@pytest.mark.parametrize("way", ["numpy", "function", "effects", "callback"])
def test_callback_of_a_region_that_waits_for_the_devices(way, monkeypatch):
    """The same where each device has its own: those that have their answers wait for the others."""
    monkeypatch.setattr(watchdog, "_HOLD_PATIENCE", 1.0)
    monkeypatch.setattr(watchdog, "_IDLE_PATIENCE", 2.0)
    x = _sharded()

    def called(y):
        _WAYS[way](x)
        return y

    def by_device(fn):
        body = lambda y: fx.callback(fn, jax.ShapeDtypeStruct(y.shape, y.dtype), y)  # noqa: E731
        return fx.jit(jax.shard_map(body, mesh=x.sharding.mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))

    with pytest.raises(fx.EffectError, match="over several devices|does not begin"):
        by_device(called)(x)
    _settle()
    assert by_device(lambda y: y + 1)(x)[0] == 1


def _settle():
    """What the function was about goes on when its program has ended, or fails; that is not what is tested."""
    with contextlib.suppress(fx.EffectError, BaseExceptionGroup):
        _barrier()


_FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
_OVER_FOUR_DEVICES = (
    "import faulthandler; faulthandler.dump_traceback_later(100, exit=True)\n"
    "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
    "from effects.dispatch.draining import watchdog\n"
    "mesh = jax.make_mesh((4,), ('x',), axis_types=(jax.sharding.AxisType.Auto,))\n"
    "x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P('x')))\n"
)


def test_callback_that_only_starts_a_computation_over_several_devices():
    """It need not wait for it, and may take its time; the computation begins when the program has ended."""
    code = _OVER_FOUR_DEVICES + (
        "import threading\n"
        "looks, look, started = threading.Semaphore(0), watchdog._wait, []\n"
        "watchdog._PATIENCE = watchdog._IDLE_PATIENCE = 0.0\n"
        "watchdog._wait = lambda *args: (looks.release(), look(*args))[1]\n"
        "double = jax.jit(lambda x: x * 2)\n"
        "def called(y):\n"
        "    started.append(double(x))\n"
        "    for _ in range(3):\n"
        "        looks.acquire()\n"
        "    return y\n"
        "f = fx.jit(lambda y: fx.callback(called, jax.ShapeDtypeStruct((8,), jnp.float32), y))\n"
        "for _ in range(2): assert f(x)[1] == 1\n"
        "assert [y[1] for y in started] == [2, 2]\n"
        "fx.effects_barrier()\n"
    )
    done = run_python(code, env={**_FOUR_DEVICES, "PJRT_NPROC": "16"})  # so that dispatching waits for no thread
    assert done.returncode == 0, done.stdout + done.stderr


_STARVED = _OVER_FOUR_DEVICES + (
    "watchdog._IDLE_PATIENCE = 2.0\n"
    "a, matmul = jnp.ones((512, 512)), jax.jit(lambda a: a @ a)\n"
    "def called(y):\n"
    "    {wait}\n"
    "    return y\n"
    "f = fx.jit(lambda y: fx.callback(called, jax.ShapeDtypeStruct((8,), jnp.float32), y))\n"
    "try: f(x)\n"
    "except fx.EffectError as error: print(error)\n"
    "else: print('fine')\n"
    "assert matmul(a)[0, 0] == 512\n"
)


@pytest.mark.parametrize("wait", ["np.asarray(matmul(a))", "float(matmul(a)[0, 0])", "matmul(a).block_until_ready()"])
@pytest.mark.parametrize(("threads", "said"), [(1, "PJRT_NPROC"), (8, "fine")])
def test_callback_that_computes_while_programs_have_all_threads(wait, threads, said):
    """A program takes one of XLA's threads for each device. If none is left, it ends with an error that says so."""
    done = run_python(_STARVED.format(wait=wait), env={**_FOUR_DEVICES, "PJRT_NPROC": str(threads)})
    assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("results", ["F32", "None"])
def test_callback_of_the_first_program_of_a_process(results):
    """It runs though nothing but JAX has dispatched anything."""
    code = (
        "import faulthandler; faulthandler.dump_traceback_later(100, exit=True)\n"
        "import jax, effects as fx\n"
        "F32 = jax.ShapeDtypeStruct((), 'float32')\n"
        f"f = jax.jit(lambda x: fx.callback(lambda x: (print('called'), x)[1], {results}, x))\n"
        "jax.block_until_ready(f(1.0))\n"
        "fx.effects_barrier(timeout=60)\n"
    )
    done = run_python(code)
    assert done.returncode == 0 and done.stdout == "called\n", done.stderr


def test_barrier_that_gives_up_names_the_callback_that_runs():
    """The message of the timeout says which function keeps it waiting, and whose effects are outstanding."""
    gate = threading.Event()

    def slow():
        gate.wait(60)

    f = fx.jit(lambda x: (fx.callback(slow, None), fx.print("{}", x)))
    f(1)
    with pytest.raises(fx.BarrierTimeout) as info:
        fx.effects_barrier(timeout=0.2)
    assert "slow" in str(info.value) and "callback, print of" in str(info.value) and __file__ in str(info.value)
    fx.effects_barrier(timeout=0.2, effects="log")  # none are outstanding
    gate.set()
    _barrier()


def test_callbacks_of_several_threads_and_devices():
    """Each thread drives a device of its own; every thread's callbacks keep their order, and none hangs."""
    seen: dict[int, list[int]] = {k: [] for k in range(4)}

    def run(k):
        def called(i, c):
            seen[k].append(int(i))
            return np.float32(_matmul(jnp.ones((8, 8)))) * 0 + c + 1

        f = fx.jit(lambda n, c: jax.lax.fori_loop(0, n, lambda i, c: fx.callback(called, F32, i, c), c))
        c = jax.device_put(jnp.float32(0), jax.devices()[k])
        for _ in range(5):
            assert f(20, c) == 20
        fx.effects_barrier(timeout=120)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert seen == {k: list(range(20)) * 5 for k in range(4)}


@pytest.mark.parametrize("when_full", ["wait", "drop_newest", "drop_oldest"])
def test_nothing_waited_for_is_dropped(when_full):
    """Rings too small for what a callback's program prints: whoever waits is answered, and nothing hangs."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
        "F = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "inner = fx.jit(lambda x: (jax.lax.fori_loop(0, 3000, lambda i, _: fx.print('{}', i), None), x + 1)[1])\n"
        "f = fx.jit(lambda x: fx.callback(lambda x: np.asarray(inner(x)), F, x))\n"
        "for i in range(3): assert f(jnp.float32(i)) == i + 1\n"
        "fx.effects_barrier(timeout=100)\n"
        "if fx.config.when_full == 'wait': assert fx.stats()['dropped'] == 0\n"
    )
    done = run_python(code, env={"EFFECTS_RING_BYTES": "4096", "EFFECTS_WHEN_FULL": when_full})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("asynchronous", ["True", "False"])
def test_a_thousand_callbacks_that_use_jax(asynchronous):
    """A matmul, a transfer and a program with a print of its own in every callback, a thousand times: no hang."""
    code = (
        "import faulthandler; faulthandler.dump_traceback_later(200, exit=True)\n"
        "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
        f"jax.config.update('jax_cpu_enable_async_dispatch', {asynchronous})\n"
        "F = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "matmul = jax.jit(lambda a: (a @ a).sum())\n"
        "inner = fx.jit(lambda x: (fx.print('inner {}', x), x + 1)[1])\n"
        "a = jnp.ones((512, 512))\n"
        "def called(x):\n"
        "    matmul(a)\n"
        "    jax.device_put(x, jax.devices()[1])\n"
        "    return np.asarray(inner(x))\n"
        "f = fx.jit(lambda x: fx.callback(called, F, x))\n"
        "g = fx.jit(lambda x: (fx.callback(lambda x: (called(x), None)[1], None, x), x + 1)[1])\n"
        "x = jnp.float32(0)\n"
        "for i in range(500): x = g(f(x))\n"
        "fx.effects_barrier()\n"
        "print(float(x))\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown == [*(f"inner {float(i)}" for i in range(1000)), "1000.0"]


# Wrong ways


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: fx.callback(3, None, x), TypeError, "cannot be called|can be called"),
        (lambda x: fx.callback(print, 3, x), TypeError, "a shape and a dtype"),
        (lambda x: fx.callback(print, {"a": "f32"}, x), TypeError, "a shape and a dtype"),
        (lambda x: fx.callback(print, jax.ShapeDtypeStruct((2,), np.float64), x), TypeError, "jax_enable_x64"),
        (lambda x: fx.callback(print, None, {1, 2}), TypeError, "pytrees of arrays"),
        (lambda x: fx.callback(print, None, x, vmap_method="all"), ValueError, "vmap_method"),
    ],
)
def test_wrong_calls_are_refused_while_tracing(make, error, message):
    """What cannot be meant is an error at the user's line, before anything runs."""
    with pytest.raises(error, match=message) as info:
        fx.jit(make)(1.0)
    assert __file__ in str(info.value)
    fx.effects_barrier()


@pytest.mark.parametrize(
    ("asked", "returned", "got"),
    [
        (F32, np.zeros(2, np.float32), r"float32\[2\]"),
        (F32, np.float64(1), "float64"),
        (F32, np.int32(1), "int32"),
        (INT, 1.5, "1.5"),
        (INT, 2**40, "1099511627776"),
        (F32, None, "structure"),
        (F32, [np.float32(1)], "structure"),
        ((F32, F32), np.float32(1), "structure"),
        (F32, "text", "'text'"),
        (F32, 1j, "1j"),
        (F32, 1e300, "1e\\+300"),
        (F32, 10**400, "1000"),
        (jax.ShapeDtypeStruct((), "int4"), 100, "100"),
        (jax.ShapeDtypeStruct((), "uint4"), -1, "-1"),
    ],
)
def test_wrong_results_are_an_error_that_names_all(asked, returned, got, jit):
    """The message names the function, what was expected and what came."""

    def returns_wrongly(x):
        return returned

    with pytest.raises(Exception, match=got) as info:
        jax.block_until_ready(jit(lambda x: fx.callback(returns_wrongly, asked, x))(jnp.float32(1)))
    assert "returns_wrongly" in str(info.value) and "expected" in str(info.value)
    if jit is jax.jit:
        with pytest.raises(fx.EffectError, match=got):
            fx.effects_barrier()
    else:
        assert isinstance(info.value, fx.EffectError) and isinstance(info.value.__cause__, TypeError)
    fx.effects_barrier()


# What is kept, and for how long


class _Dies:
    """A function that can be watched."""

    def __call__(self, *args: Any) -> None: ...


def test_arguments_are_not_kept():
    """Once a callback has run, nothing holds its arguments."""
    seen = []
    f = fx.jit(lambda x: fx.callback(lambda x: seen.append(weakref.ref(x)), None, x))
    for size in (10, 1_000_000):
        f(jnp.ones(size))
    _barrier()
    assert [ref() for ref in seen] == [None, None]


def test_traces_keep_no_function():
    """A function that was traced and not compiled is not kept by any cache."""

    def trace(jit) -> weakref.ref:
        fn = _Dies()
        f = lambda x: fx.callback(fn, None, x)  # noqa: E731
        jax.make_jaxpr(f)(1.0) if jit is None else jit(f).trace(1.0)
        return weakref.ref(fn)

    refs = [trace(jit) for jit in (None, jax.jit, fx.jit) for _ in range(3)]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 9


@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_function_goes_with_its_program(jit):
    """A function is kept by the programs that call it, and by nothing else."""

    def use() -> weakref.ref:
        fn = _Dies()
        f = jit(lambda x: fx.callback(fn, None, x))
        f(1.0)
        return weakref.ref(fn)

    refs = [use() for _ in range(3)]
    _barrier()
    jax.clear_caches()
    for _ in range(50):  # the drain forgets when it next has something to do
        gc.collect()
        fx.print("")
        _barrier()
        if not any(ref() for ref in refs):
            break
    assert [ref() for ref in refs] == [None] * 3


def test_function_lives_while_its_program_runs():
    """A program whose function nobody else has any more still calls it."""
    seen = []
    for i in range(20):
        fx.jit(lambda x: fx.callback(lambda x: seen.append(float(x)), None, x))(jnp.float32(i))
        gc.collect()
    _barrier()
    assert seen == list(range(20))


def test_traces_of_fresh_functions_leave_nothing():
    """Ten thousand traces of fresh lambdas: memory comes back."""
    code = (
        "import gc, resource, jax, jax.numpy as jnp, effects as fx\n"
        "def rss():\n"
        "    for line in open('/proc/self/status'):\n"
        "        if line.startswith('VmRSS'): return int(line.split()[1])\n"
        "def trace(n):\n"
        "    for _ in range(n): fx.jit(lambda x: fx.callback(lambda x: None, None, x)).trace(1.0)\n"
        "    gc.collect()\n"
        "trace(500); before = rss()\n"
        "trace(10_000); after = rss()\n"
        "print(before, after)\n"
        "assert after <= 1.1 * before, (before, after)\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_callback_that_waits_in_a_later_exit_handler():
    """There is no other thread any more: what a function waits for is replayed inside of it."""
    code = (
        "import atexit, faulthandler, sys, jax, jax.numpy as jnp\n"
        "faulthandler.dump_traceback_later(60, exit=True)\n"
        "def later(): f(2); fx.effects_barrier(); sys.stdout.write('the end\\n')\n"
        "atexit.register(later)\n"
        "import effects as fx\n"
        "inner = fx.jit(lambda x: fx.print('inner {}', x))\n"
        "def called(x): inner(x); fx.effects_barrier(); sys.stdout.write('back\\n')\n"
        "@fx.jit\n"
        "def f(x):\n"
        "    fx.callback(called, None, x)\n"
        "    fx.print('after {}', x)\n"
        "f(1)\n"
    )
    done = run_python(code, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["inner 1", "back", "after 1", "inner 2", "back", "after 2", "the end", ""]


def test_in_a_later_exit_handler():
    """When the drain has ended, a barrier replays what is only recorded; who would wait for results is told."""
    code = (
        "import atexit, logging, sys, jax, jax.numpy as jnp, numpy as np\n"  # JAX's own handler comes last
        "def later():\n"
        "    f(2); fx.effects_barrier()\n"
        "    for call in (g, lambda x: fx.callback(called, F, x)):\n"
        "        try: call(3)\n"
        "        except Exception as error: sys.stdout.write(str(error)[-65:] + '\\n')\n"
        "    fx.effects_barrier(); sys.stdout.write('the end\\n')\n"
        "atexit.register(later)\n"
        "import effects as fx\n"
        "log = logging.getLogger('effects')\n"
        "log.setLevel(logging.INFO); log.addHandler(logging.StreamHandler(sys.stdout))\n"
        "F = jax.ShapeDtypeStruct((), jnp.int32)\n"
        "def called(x): sys.stdout.write(f'called {x}\\n'); return x + 1\n"
        "@fx.jit\n"
        "def f(x):\n"
        "    fx.print('{}', jnp.ones(2))\n"
        "    fx.log('event', x=x)\n"
        "    fx.callback(called, None, x)\n"
        "g = fx.jit(lambda x: fx.callback(called, F, x))\n"
        "f(1); g(1)\n"
    )
    done = run_python(code, timeout=100)
    assert done.returncode == 0, done.stderr
    refused = "or register the exit handler that does after importing `effects`."
    expected = ["[1. 1.]", "event x=1", "called 1", "called 1", "[1. 1.]", "event x=2", "called 2"]
    assert done.stdout.splitlines() == [*expected, refused, refused, "the end"]


def test_without_native_code():
    """On a platform without native handlers the same comes out through JAX's callbacks."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
        "F = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "def body(i, c):\n"
        "    fx.callback(lambda i: print('queued', i), None, i)\n"
        "    c = fx.callback(lambda c: (print('sync', c), c + np.float32(1))[1], F, c)\n"
        "    fx.print('print {}', c)\n"
        "    return c\n"
        "f = lambda n: jax.lax.fori_loop(0, n, body, jnp.float32(0))\n"
        "assert fx.jit(f)(3) == 3\n"
        "fx.effects_barrier(); print('-')\n"
        "assert jax.jit(f)(3) == 3\n"
        "fx.effects_barrier()\n"
    )
    done = run_python(code, env={"EFFECTS_NATIVE": "0"})
    assert done.returncode == 0, done.stderr
    once = [line for i in range(3) for line in (f"queued {i}", f"sync {float(i)}", f"print {float(i + 1)}")]
    assert done.stdout.splitlines() == [*once, "-", *once]
