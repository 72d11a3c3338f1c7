"""Callbacks: when they run, and what they are given."""

import contextvars
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import meet_barrier

F32 = jax.ShapeDtypeStruct((), jnp.float32)


# Without results


@pytest.mark.parametrize("waits", [True, False])
def test_call_waits_for_results_and_not_for_what_is_queued(waits):
    """A program ends while a callback without results has not begun, also if it has waited for another one."""
    gate, seen = threading.Event(), []

    @fx.jit
    def f(x):
        y = fx.callback(lambda x: x + 1, F32, x) if waits else x + 1
        fx.callback(lambda x: seen.append(gate.wait(60)), None, x)
        return y

    assert f(jnp.float32(1)) == 2 and seen == []
    gate.set()
    meet_barrier()
    assert seen == [True]


def test_callback_gets_what_it_was_given(jit):
    """Pytrees, keywords, strings, numbers and None arrive as they were written; arrays as NumPy arrays."""
    seen = []

    def f(x):
        fx.callback(lambda *a, **k: seen.append((a, k)), None, {"x": x, "n": None}, "text", 3, key=(x, 2.5))

    jit(f)(jnp.arange(3))
    meet_barrier()
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
    meet_barrier()
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


# The record, the context, references


def test_pass_record():
    """With `pass_record` the function gets its own record: device, lane, place, line."""
    records = []

    def f(x):
        fx.callback(lambda x, record: records.append(record), None, x, pass_record=True)
        return fx.callback(lambda x, record: np.float32(record.line), F32, x, pass_record=True)

    device, line = jax.devices()[2], f.__code__.co_firstlineno + 1
    assert fx.jit(f)(jax.device_put(jnp.float32(1), device)) == line + 1
    fx.jit(jax.vmap(f))(jnp.arange(2.0))
    meet_barrier()
    single, *lanes = records
    assert single.effect == "callback" and single.device == device.id and single.lane == () and single.process == 0
    assert single.where.file == __file__ and single.line == line
    assert len(single.token) == 4 and single.args[0] == 1
    assert [record.lane for record in lanes] == [(0,), (1,)]
    assert [record.args[0].tolist() for record in lanes] == [0, 1]


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
    meet_barrier()
    assert seen == [0] * 6


# Wrong ways


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda x: fx.callback(3, None, x), TypeError, "another callable"),
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


async def sends(x):
    raise AssertionError("nothing runs a coroutine")


class Sender:
    async def __call__(self, x):
        raise AssertionError("nothing runs a coroutine")


def yields(x):
    yield x


class Yielder:
    def __call__(self, x):
        yield x


async def sends_and_yields(x):
    yield x


LATER = {
    "function": (sends, r"an `async def` function\..* a coroutine .*asyncio\.run\("),
    "object": (Sender(), r"an `async def` function\..*asyncio\.run\("),
    "partial": (functools.partial(sends), r"an `async def` function\..*asyncio\.run\("),
    "generator": (yields, r"a generator function\..*list\(f\(\*args\)\)\[-1\]"),
    "generator object": (Yielder(), r"a generator function\..*list\("),
    "generator partial": (functools.partial(yields), r"a generator function\..*list\("),
    "asynchronous generator": (sends_and_yields, r"an asynchronous generator function\..*that runs it\."),
}


@pytest.mark.parametrize(
    "call", [lambda fn, *args: fx.callback(fn, None, *args), lambda fn, *args: fx.async_callback(fn, F32, *args)]
)
@pytest.mark.parametrize(("fn", "message"), LATER.values(), ids=LATER)
def test_asynchronous_functions_and_generators_are_refused_while_tracing(call, fn, message):
    """A function that only makes a coroutine or a generator would never run."""
    with pytest.raises(TypeError, match=f"which is {message}") as info:
        fx.jit(lambda x: call(fn, x))(1.0)
    assert f"{__file__}:{call.__code__.co_firstlineno}" in str(info.value)


def _wrapped(x, y):
    raise AssertionError("the wrapper is called, and calls nothing")


@functools.wraps(_wrapped)
def wrapper(*args):
    pass


class Made:
    def __init__(self, x):
        pass

    async def __call__(self):
        pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: fx.callback(lambda: 1, F32, x), r"cannot call `.*<lambda>` .*too many positional.*takes: `.*\(\)`"),
        (lambda x: fx.callback(lambda x, y: 1, F32, x), "missing a required argument: 'y'.*`.*\\(x, y\\)`"),
        (lambda x: fx.callback(lambda x: 1, None, y=x), "missing a required argument: 'x'|unexpected keyword"),
        (lambda x: fx.callback(lambda x: 1, None, x, pass_record=True), "'record'.*and `record`"),
        (lambda x: fx.callback([].append, None, x, x), "too many positional"),
        (lambda x: fx.async_callback(lambda: 1, F32, x), "`fx.async_callback` at .*too many positional"),
    ],
)
def test_arguments_that_a_function_does_not_take_are_refused_while_tracing(make, message):
    """What a signature says is known before anything runs."""
    with pytest.raises(TypeError, match=message) as info:
        fx.jit(make)(1.0)
    assert f"{__file__}:{make.__code__.co_firstlineno}" in str(info.value)


@pytest.mark.parametrize(
    "fn", [print, [].append, wrapper, Made, max, jax.jit(lambda x, y=0: x), functools.partial(pow, 2)]
)
def test_functions_that_may_take_their_arguments_are_called(fn, capsys):
    """A signature that is not known, or is another function's, refuses nothing."""
    x = jnp.ones(2) if fn is max else jnp.float32(1)
    fx.jit(lambda x: fx.callback(fn, None, x))(x)
    meet_barrier()
