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
from tests.dispatch.export.common import again, run_with, total

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


# Pickled executables


def _loaded(compiled):
    payload = pickle.dumps(serialize_executable.serialize(compiled))
    return serialize_executable.deserialize_and_load(*pickle.loads(payload), execution_devices=jax.devices()[:1])


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
    with pytest.raises(RuntimeError, match="was called while another function is traced"):
        jax.jit(lambda: loaded(x, 1, k=2.0))()


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
