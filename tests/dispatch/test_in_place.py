"""`fx.jit` in the place of `jax.jit`: what users do with a jitted function besides calling it."""

from __future__ import annotations

import copy
import io
import marshal
import pickle
import types

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.forks import run_forked

X = jnp.arange(3.0)


def _repeat(x, n):
    fx.print("{} times", n)
    return jnp.tile(x, n)


_repeat.author = "me"


def test_attributes_of_the_function_are_carried_over():
    """What a function has as attributes its jitted function has, and more may be set."""
    f = fx.jit(_repeat, static_argnums=1)
    assert f.author == "me" and f.__wrapped__ is _repeat and f.__name__ == "_repeat"
    f.version = 2
    assert f.version == 2 and not hasattr(_repeat, "version")


class _Scaled:
    """A callable object, which has attributes of its own."""

    def __init__(self, scale):
        self.scale = scale
        self._name = "a name of its own"

    def __call__(self, x):
        fx.print("{}", self.scale * x)
        return self.scale * x


def test_copies_of_jitted_functions(lines):
    """A shallow copy calls the same function, a deep copy a copy of what it calls, with the same devices."""
    sharding = jax.NamedSharding(jax.make_mesh((1,), ("i",)), jax.P())
    f = fx.jit(_Scaled(2), out_shardings=sharding)
    f.version = [1]
    shallow, deep = copy.copy(f), copy.deepcopy(f)
    f.__wrapped__.scale = 3
    assert lines(lambda: (f(1), shallow(1), deep(1))) == ["3", "3", "2"]
    assert shallow.version is f.version and deep.version == [1] and deep.version is not f.version
    model = {"step": fx.jit(_repeat, static_argnums=1)}
    assert lines(copy.deepcopy(model)["step"], X, 2) == ["2 times"]


class _ByValue(pickle.Pickler):
    """Pickles functions with their code, as `cloudpickle` does."""

    def reducer_override(self, obj):
        if not isinstance(obj, types.FunctionType) or "<locals>" not in obj.__qualname__:
            return NotImplemented
        return _function, (marshal.dumps(obj.__code__), obj.__name__, obj.__defaults__)


def _function(code, name, defaults):
    return types.FunctionType(marshal.loads(code), globals(), name, defaults)


@pytest.mark.parametrize("pickler", [_ByValue, "cloudpickle"])
def test_jitted_functions_are_pickled(lines, pickler):
    """What takes functions along takes jitted ones: with their code, their options and what the user has set."""
    if pickler == "cloudpickle":
        cloudpickle = pytest.importorskip("cloudpickle")
        dumps = cloudpickle.dumps
    else:

        def dumps(what):
            file = io.BytesIO()
            pickler(file).dump(what)
            return file.getvalue()

    @fx.jit
    def f(x, n):
        fx.print("{} {}", x, n)

    f.version = 2
    again = pickle.loads(dumps(fx.jit(f.__wrapped__, static_argnames="n")))
    assert lines(again, 1, "text") == ["1 text"]
    assert pickle.loads(dumps(f)).version == 2


def test_looks_like_a_function_of_jax():
    """The representation and the state of a jitted function are those of JAX's, whatever the user's function says."""
    f = fx.jit(_repeat, static_argnums=1)
    assert repr(f) == repr(jax.jit(_repeat)) == f"<PjitFunction of {_repeat!r}>"
    assert f.__getstate__()["function_name"] == "_repeat"

    class Nameless:
        def __call__(self, x):
            return x

        def __repr__(self):
            raise ValueError("no")

    for function in (fx.jit(Nameless()), f):
        if function is f:
            del function.__wrapped__
        assert repr(function) == "<PjitFunction>"


def test_a_reused_key_is_told_as_jax_does():
    """Where JAX looks for random keys that are used twice, arguments have the numbers that the user gave them."""
    for jit in (jax.jit, fx.jit):
        for count in range(2):
            keys = list(jax.random.split(jax.random.key(0)))
            draw = jit(lambda *keys, n=count: jax.random.bits(keys[n]))
            with jax.debug_key_reuse(True):
                draw(*keys)
                with pytest.raises(jax.errors.KeyReuseError, match=rf"at index {count}\b"):
                    draw(*keys)


def test_clocks_may_be_replaced(lines, monkeypatch):
    """A test of the user's that replaces `time.monotonic` stops neither prints nor callbacks nor barriers."""

    @fx.jit
    def f(x):
        fx.print("{}", x)
        return fx.callback(lambda x: 2 * x, jax.ShapeDtypeStruct((), "int32"), x)

    def run():
        assert f(1) == 2
        fx.effects_barrier(timeout=60)

    run()
    with monkeypatch.context() as patch:
        patch.setattr("time.monotonic", lambda: 1 / 0)
        assert lines(run) == ["1"]


@pytest.mark.parametrize("effects", [False, True])
def test_a_leaked_tracer_is_told_as_jax_does(effects):
    """A function that uses a tracer of another one, which is over, gets JAX's `UnexpectedTracerError`."""
    leaked = []

    def leak(x):
        if effects:
            fx.print("{}", x, ordered=False)
        leaked.append(x)
        return x

    fx.jit(leak)(X)
    fx.effects_barrier()
    for f in (lambda x: x + leaked[0], lambda x: leaked[0], lambda x: fx.print("{}", leaked[0])):
        with pytest.raises(jax.errors.UnexpectedTracerError):
            fx.jit(f)(X)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        fx.jit(lambda x: x)(leaked[0])


def test_a_callable_that_cannot_be_referred_to_weakly():
    """It is refused with the error of JAX, however often, and the process lives on."""
    code = """
import jax, effects as fx

class Slots:
    __slots__ = ()
    def __call__(self, x):
        return x + 1

slots = Slots()
for _ in range(2):
    try:
        fx.jit(slots)
    except TypeError as error:
        assert "weak reference to 'Slots'" in str(error), error
    else:
        raise AssertionError("no error")
"""
    done = run_forked(code)
    assert done.returncode == 0, done.stderr


def test_error_of_a_key_that_was_used_counts_arguments_as_jax_does():
    """The token, which is an argument, too, is left out."""

    def error(jit, show):
        f = jit(lambda x, key: (show(x), jax.random.normal(key))[1])
        key = jax.random.key(0)
        with jax.debug_key_reuse(True):
            f(1.0, key)
            with pytest.raises(jax.errors.KeyReuseError) as raised:
                f(1.0, key)
        return str(raised.value)

    assert error(fx.jit, lambda x: fx.print("{}", x)) == error(jax.jit, lambda x: None)


def test_cache_size_counts_kinds_of_arguments(lines):
    """`_cache_size` is that of `jax.jit` after the same calls, and `clear_cache` empties it.

    On several devices a kind that is met late makes those before it go through Python once more.
    """
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P())
    calls = [(X, 1), (X, 1), (X + 1, 1), (X, 2), (jnp.ones(4), 2)]
    cases = [({}, calls), ({"in_shardings": sharding}, 2 * calls), ({}, 2 * [*calls, (jax.device_put(X, sharding), 1)])]

    def sizes(f, calls, seen):
        for args in calls:
            f(*args)
            seen.append(f._cache_size())
        f.clear_cache()
        seen.append(f._cache_size())

    for options, calls in cases:
        last = slice(None) if calls is cases[0][1] else slice(-2, None)
        ours, theirs = [], []
        lines(sizes, fx.jit(lambda x, n: _repeat(x, n), static_argnums=1, **options), calls, ours)
        sizes(jax.jit(lambda x, n: jnp.tile(x, n), static_argnums=1, **options), calls, theirs)
        assert ours[last] == theirs[last]


def _print(x):
    fx.print("x {}", x)
    return x + 1


def _call(x):
    return fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((), "float32"), x)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [lambda f: f, fx.jit], ids=["function", "fx.jit"])
def test_pmap_inside_has_the_effects_of_each_device(lines, inner):
    """`fx.jit` around `jax.pmap` has effects by device, as around `jax.shard_map`: with an axis, in loops, on some
    of the devices, and under derivatives."""
    axis = jax.pmap(inner(lambda x: _print(x) + jax.lax.psum(x, "i")), axis_name="i")
    static = jax.pmap(inner(lambda x: fx.print("{} {}", x, 3)), devices=jax.devices()[2:])
    looped = jax.pmap(inner(_print))
    xs, results = jnp.arange(4.0), []
    assert lines(lambda: results.append(fx.jit(axis)(xs))) == [f"x {x}" for x in xs]
    assert results[0].tolist() == [7, 8, 9, 10]
    assert lines(fx.jit(static), xs[:2]) == ["0.0 3", "1.0 3"]
    shown = lines(fx.jit(lambda xs: jax.lax.fori_loop(0, 2, lambda i, xs: looped(xs), xs)), xs)
    assert shown == [f"x {x}" for x in (*xs, *(xs + 1))]
    assert lines(fx.jit(jax.grad(lambda xs: looped(xs).sum())), xs) == [f"x {x}" for x in xs]
    assert lines(lambda: results.append(fx.jit(jax.pmap(inner(_call)))(xs))) == []
    assert results[1].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("ordered", [True, False])
def test_pmap_outside_has_the_effects_of_each_device_without_an_order(lines, ordered):
    """`jax.pmap` around `fx.jit` compiles a program of its own, where each device has its effects when it has them."""

    def f(x):
        fx.print("x {}", x, ordered=ordered)
        return _call(x)

    results = []
    shown = lines(lambda x: results.append(jax.pmap(fx.jit(f))(x)), jnp.arange(4.0))
    assert sorted(shown) == [f"x {x}" for x in jnp.arange(4.0)]
    assert results[0].tolist() == [1, 2, 3, 4]
