"""Programs that were compiled ahead of time, exported and loaded."""

from __future__ import annotations

import contextlib
import functools
import io
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import effects as fx
from tests.extensions.export.common import again

pytestmark = pytest.mark.slow

FLOAT = jax.ShapeDtypeStruct((), "float32")
X = jnp.arange(3.0)


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
def test_compiled_programs_are_jaxs(lines, fun, sharded, constants):
    """A compiled program is JAX's object, and says of itself what JAX's would, with effects or not.

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
        check(compiled, expected)


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


def test_pickled_executables_are_refused():
    """The error names the function and the remedy, with effects or without."""
    for fun in (_plain, _printing):
        compiled = fx.jit(fun).lower(X, 1, k=1.0).compile()
        with pytest.raises(NotImplementedError, match=rf"`{fun.__name__}`, which `fx.jit` compiled.*fx.export"):
            serialize_executable.serialize(compiled)


def test_failure_of_a_loaded_program_is_its_own():
    """What a callback raises is raised by the call of the loaded program, and later calls know nothing of it."""
    fail = [True]

    @fx.register_callback("tests.fails")
    def fails(x):
        if fail.pop():
            raise ValueError("once")
        fail.append(False)
        return x

    call = again(fx.export(lambda x: fx.callback(fails, FLOAT, x))(1.0)).call
    with pytest.raises(fx.EffectError, match="`tests.fails`.*once"):
        call(np.float32(1))
    fail[:] = [False]
    assert float(call(np.float32(2))) == 2.0
    with contextlib.redirect_stdout(io.StringIO()):
        fx.effects_barrier()
