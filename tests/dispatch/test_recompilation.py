"""A function of `fx.jit` is traced and compiled where `jax.jit` would trace and compile it, and nowhere else."""

import contextlib
import io
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.dispatch.devices.meshes import P, mesh_over, on

X = jnp.float32(1)


def _shapes(make, call):
    f = make()
    for x in (X, X, X + 1, jnp.ones(3), jnp.ones(3), X):
        call(f, x)


def _types(make, call):
    f = make()
    for x in (1.0, 2.0, np.float32(1), X, jnp.asarray(1.0), 1, True, np.ones(3, np.float32), jnp.ones(3)):
        call(f, x)


def _structures(make, call):
    f = make()
    for args, kwargs in (((X,), {}), ((X, 1), {}), ((X,), {"a": 1}), ((X,), {"a": 2}), ((X,), {"b": 1})):
        call(f, *args, **kwargs)
    for x in ({"a": X}, {"a": X}, [X, X]):
        call(f, x)


def _devices(make, call):
    f = make()
    for x in (X, on(0, X), on(1, X), X, on(1, X), on(2, X), on(0, X)):
        call(f, x)


def _default_device(make, call):
    f = make()
    call(f, 1.0)
    with jax.default_device(jax.devices()[1]):
        call(f, 1.0), call(f, 1.0)
    call(f, 1.0)


def _shardings(make, call):
    f, x = make(), jnp.arange(8.0)
    cut, whole = (jax.NamedSharding(mesh_over(), spec) for spec in (P("x"), P()))
    for sharding in (None, cut, cut, whole, None, cut):
        call(f, x if sharding is None else jax.device_put(x, sharding))


def _meshes(make, call):
    f = make()
    call(f, X)
    with jax.set_mesh(mesh_over()):
        call(f, X), call(f, X)
    call(f, X)


def _static_arguments(make, call):
    f = make(static_argnums=1)
    for value in (1, 1, 2, "a", 1, (1, 2), (1, 2)):
        call(f, X, value)


def _donated_arguments(make, call):
    f = make(donate_argnums=0)
    for size in (3, 3, 4):
        call(f, jnp.ones(size))


def _closures(make, call):
    for _ in range(3):
        f = make()
        call(f, X), call(f, X)


def _threads(make, call):
    f = make()
    call(f, X)
    for _ in range(2):
        thread = threading.Thread(target=call, args=(f, X))
        thread.start()
        thread.join()
    call(f, X)


def _settings(make, call):
    f = make()
    call(f, X)
    for setting in (jax.debug_nans(True), jax.default_matmul_precision("float32"), jax.enable_x64(True)):
        with setting:
            call(f, X), call(f, X)
        call(f, X)


def _cleared_caches(make, call):
    f = make()
    for clear in (lambda: None, jax.clear_caches, f.clear_cache):
        clear()
        call(f, X), call(f, X)


def _stages(make, call):
    f = make()
    call(lambda x: f.lower(x).compile()(x), X)
    call(f, X), call(f, X)
    call(lambda x: f.trace(x).lower().compile()(x), X)


def _transformations(make, call):
    f = make()
    for g, x in ((jax.vmap(f), jnp.ones(3)), (jax.grad(f), X), (jax.vmap(jax.grad(f)), jnp.ones(3))):
        call(f, X), call(g, x), call(g, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sequence",
    [
        _shapes,
        _types,
        _structures,
        _devices,
        _default_device,
        _shardings,
        _meshes,
        _static_arguments,
        _donated_arguments,
        _closures,
        _threads,
        _settings,
        _cleared_caches,
        _stages,
        _transformations,
    ],
    ids=lambda sequence: sequence.__name__,
)
def test_calls_trace_and_compile_as_those_of_jax(sequence):
    """For each call of a sequence: how often the function is traced, and how many programs are compiled, of whatever
    name. The function of `jax.jit` is the same without its print."""
    plain = _count(sequence, jax.jit, lambda x: None)
    assert sum(compiled for _, compiled in plain) > 0
    assert _count(sequence, fx.jit, lambda x: fx.print("{}", x)) == plain


def _count(sequence, jit, emit):
    traced, compiled, counts = [], [], []

    def make(**options):
        def f(x, *args, **kwargs):
            traced.append(None)
            emit(x)
            return jax.tree.map(lambda x: x * 2, x)

        return jit(f, **options)

    def call(f, *args, **kwargs):
        before = len(traced), len(compiled)
        jax.block_until_ready(f(*args, **kwargs))
        counts.append((len(traced) - before[0], len(compiled) - before[1]))

    def note(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            sequence(make, call)
            fx.effects_barrier(all_threads=True)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    return counts
