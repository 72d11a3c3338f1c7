"""Programs that were compiled ahead of time, and compiled programs that were pickled."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import effects as fx
from tests.extensions.export.common import again, run_with, total

FLOAT = jax.ShapeDtypeStruct((), "float32")
X = jnp.arange(3.0)


# Compiled ahead of time


def test_compiled_with_static_donated_and_named_arguments(lines):
    """A compiled program is called as the user's function is, whatever it was compiled with."""

    @functools.partial(fx.jit, static_argnums=1, static_argnames="word", donate_argnums=0)
    def f(x, k, *, y, word):
        fx.print("{} {} {} {}", x, k, y, word)
        return x * k + y

    compiled = f.lower(X, 2, y=1.0, word="w").compile()
    x = jnp.ones(3)
    shown = []
    assert lines(lambda: shown.append(compiled(x, y=3.0))) == ["[1. 1. 1.] 2 3.0 w"]
    assert shown[0].tolist() == [5, 5, 5]
    assert x.is_deleted()
    with pytest.raises(TypeError, match="pytree"):
        compiled(jnp.ones(3))
    with pytest.raises(TypeError):
        compiled(jnp.ones(4), y=3.0)
    assert lines(compiled, jnp.zeros(3), y=0.0) == ["[0. 0. 0.] 2 0.0 w"]  # a call that fails leaves nothing open


def test_compiled_in_another_thread(lines):
    """A program compiled in one thread and called in several: each thread's own order."""

    def f(n, k):
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}: {}", k, i), None)

    compiled = fx.jit(f).lower(1, 1).compile()

    def call():
        threads = [threading.Thread(target=compiled, args=(20, k)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    shown = lines(call)
    for k in range(3):
        assert [line for line in shown if line.startswith(f"{k}:")] == [f"{k}: {i}" for i in range(20)]


def _plain(x, unused, *, k):
    return {"a": x + k}


def _printing(x, unused, *, k):
    fx.print("x {}", x)
    return {"a": x + k}


def _descriptions(program):
    """All that a compiled program says of itself."""
    names = ("in_avals", "input_shardings", "input_formats", "output_shardings", "output_formats", "out_info")
    names = (*names, "in_tree", "out_tree", "args_info", "donate_argnums")
    return {name: str(getattr(program, name)) for name in names}


@pytest.mark.parametrize("constants", [False, True], ids=["", "constants as arguments"])
@pytest.mark.parametrize("sharded", [False, True], ids=["one device", "four devices"])
@pytest.mark.parametrize("fun", [_plain, _printing])
def test_compiled_and_loaded_programs_are_jaxs(lines, fun, sharded, constants):
    """A compiled program is JAX's object, as is a loaded one, and says of itself what JAX's would, with effects or not.

    Under a transformation it is JAX's `TypeError`, and what is wrong with arguments counts no token.
    """
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh, jax.P("i"))) if sharded else jnp.arange(4.0)
    table = 1 + jnp.zeros(1000)  # a constant of both programs

    def with_table(fun):
        return lambda x, unused, *, k: fun(x + table[:4], unused, k=k)

    def errors(program):
        calls = [
            lambda: jax.jit(program)(x, 1, k=2.0),
            lambda: jax.vmap(program)(x[None], 1, k=2.0),
            lambda: jax.grad(lambda x: program(x, 1, k=2.0)["a"].sum())(x),
            lambda: program(x),
            lambda: program(x[:2], 1, k=2.0),
            lambda: program(jax.device_put(x, jax.devices()[1]), 1, k=2.0),
        ]
        for call in calls:
            with pytest.raises((TypeError, ValueError)) as caught:
                call()
            yield type(caught.value), str(caught.value)

    def check(program, reference):
        assert isinstance(program, jax.stages.Compiled)
        assert _descriptions(program) == _descriptions(reference)
        assert list(errors(program)) == list(errors(reference))
        results = []
        shown = [] if fun is _plain else ["x [1. 2. 3. 4.]"]
        assert lines(lambda: results.append(program(x, 1, k=2.0))) == shown
        with jax.disable_jit():
            assert lines(lambda: results.append(program(x, 1, k=2.0))) == shown
        assert [result["a"].tolist() for result in results] == [[3, 4, 5, 6]] * 2
        # No argument is a tracer: the program runs where the other one is traced, as JAX's does.
        assert lines(jax.jit(lambda y: (program(x, 1, k=2.0), y)[1]), 1) == shown

    with contextlib.ExitStack() as stack:
        if constants:
            stack.callback(jax.config.update, "jax_use_simplified_jaxpr_constants", False)
            jax.config.update("jax_use_simplified_jaxpr_constants", True)
        compiled = fx.jit(with_table(fun)).lower(x, 1, k=1.0).compile()
        expected = jax.jit(with_table(_plain)).lower(x, 1, k=1.0).compile()
        pairs = [(compiled, expected)]
        if not constants:
            pairs.append((_loaded(compiled, x.devices()), _loaded(expected, x.devices())))
        for program, reference in pairs:
            check(program, reference)


@pytest.mark.parametrize("called_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"in_shardings": 0}, {"out_shardings": 0}, {"in_shardings": 0, "lies": False}])
def test_a_program_is_compiled_once_for_calls_and_ahead(lines, options, called_first):
    """What a call has compiled, on several devices too, `lower().compile()` finds, and the other way round."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    options = dict(options)
    x = jax.device_put(jnp.arange(4.0), sharding if options.pop("lies", True) else None)
    options = dict.fromkeys(options, sharding)
    described = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding if len(x.devices()) > 1 else None)
    f = fx.jit(lambda x: (fx.print("{}", x), x + 1)[1], **options)
    compiled = []

    def note(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        steps = [lambda: f(x), lambda: f.lower(x).compile(), lambda: f.lower(described).compile()]
        steps += [lambda: f.trace(x).lower().compile(), lambda: f(x)]
        for step in steps if called_first else steps[1:]:
            lines(step)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert len(compiled) == 1


# Pickled executables


def _loaded(compiled, devices=()):
    payload = pickle.dumps(serialize_executable.serialize(compiled))
    devices = sorted(devices, key=lambda device: device.id) or jax.devices()[:1]
    return serialize_executable.deserialize_and_load(*pickle.loads(payload), execution_devices=devices)


def test_executable_round_trip(lines):
    """JAX's own functions take a compiled program apart and put it together; what comes out is called as the first."""

    @functools.partial(fx.jit, donate_argnums=0)
    def f(x, unused, *, k):
        fx.print("x {} k {:.1f}", x, k)
        y = fx.callback(total, FLOAT, x)
        fx.print("y {}", y)
        return {"y": y}, x + k

    compiled = f.lower(X, 1, k=1.0).compile()
    loaded = _loaded(compiled)
    assert loaded.in_tree == compiled.in_tree and loaded.out_tree == compiled.out_tree
    assert str(loaded.in_avals) == str(compiled.in_avals)
    assert jax.tree.structure(loaded.input_shardings) == jax.tree.structure(compiled.input_shardings)
    assert jax.tree.structure(loaded.out_info) == jax.tree.structure(compiled.out_info)
    for program in (loaded, _loaded(compiled)):
        x = jnp.ones(3)
        assert lines(program, x, 1, k=2.0) == ["x [1. 1. 1.] k 2.0", "y 3.0"]
        assert x.is_deleted()
        with fx.capture(suppress=True):
            y, x = program(jnp.ones(3), 1, k=2.0)
        assert float(y["y"]) == 3.0 and x.tolist() == [3, 3, 3]
    with pytest.raises(TypeError, match="pytree"):
        loaded(X)


def test_executable_without_effects():
    """A program without effects makes the same journey."""
    assert _loaded(fx.jit(lambda x: x + 1).lower(1).compile())(2) == 3


def test_executable_in_another_process():
    """The process that loads it needs no import of ours before, and finds callbacks by name."""

    def f(x):
        fx.print("x {}", x)
        return fx.callback(total, FLOAT, x) + 1

    payload = pickle.dumps(serialize_executable.serialize(fx.jit(f).lower(X).compile()))
    code = """
import pickle, sys
import jax
from jax.experimental import serialize_executable
import jax.numpy as jnp
parts = pickle.load(open(sys.argv[1], "rb"))
loaded = serialize_executable.deserialize_and_load(*parts, execution_devices=jax.devices()[:1])
try:
    loaded(jnp.arange(3.0))
except RuntimeError as error:
    print(type(error).__name__, "register_callback" in str(error))
import effects as fx
fx.register_callback("tests.total")(lambda x: x.sum())
print(loaded(jnp.ones(3)))
"""
    done = run_with(code, payload)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["4.0", "EffectError True", "x [0. 1. 2.]", "x [1. 1. 1.]"]


def test_failure_of_a_loaded_program_is_its_own():
    """What a callback raises is raised by the call of the loaded program, and later calls know nothing of it."""
    fail = [True]

    @fx.register_callback("tests.fails")
    def fails(x):
        if fail.pop():
            raise ValueError("once")
        fail.append(False)
        return x

    loaded = _loaded(fx.jit(lambda x: fx.callback(fails, FLOAT, x)).lower(1.0).compile())
    exported = again(fx.export(lambda x: fx.callback(fails, FLOAT, x))(1.0))
    for call in (loaded, exported.call):
        fail[:] = [True]
        with pytest.raises(fx.EffectError, match="`tests.fails`.*once"):
            call(np.float32(1))
        fail[:] = [False]
        assert float(call(np.float32(2))) == 2.0
    with contextlib.redirect_stdout(io.StringIO()):
        fx.effects_barrier()
