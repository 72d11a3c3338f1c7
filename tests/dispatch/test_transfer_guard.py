"""Programs with effects where the user guards against transfers: those of the library are none of theirs."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.dispatch.devices.meshes import mesh_over

F32 = jax.ShapeDtypeStruct((), "float32")

_programs = {
    "print": lambda x: (fx.print("{}", x), x)[1],
    "print in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, x: (fx.print("{} {}", i, x), x)[1], x),
    "queued": lambda x: (fx.callback(lambda x: None, None, x), x)[1],
    "awaited": lambda x: fx.callback(lambda x: np.float32(x.sum()), F32, x),
    "per_shard": lambda x: (fx.print("{}", x, per_shard=True), x)[1],
    "jax.debug.print": lambda x: (jax.debug.print("{}", x), x)[1],
    "jax.debug.callback": lambda x: (jax.debug.callback(lambda x: None, x), x)[1],
    "io_callback": lambda x: jax.experimental.io_callback(lambda x: np.float32(1), F32, x, ordered=True),
}


@contextlib.contextmanager
def _guarding_all_threads():
    jax.config.update("jax_transfer_guard", "disallow_explicit")
    try:
        yield
    finally:
        jax.config.update("jax_transfer_guard", "allow")


@pytest.mark.parametrize("devices", [(0, 1), (1,)])
def test_token_on_another_device(devices, lines):
    """Where the arguments do not say on which devices a program runs, no copy from one device to others is needed."""
    sharding = jax.NamedSharding(mesh_over(*devices), jax.P("x"))
    f = fx.jit(lambda x: fx.print("{}", x), in_shardings=sharding)

    def call():
        for _ in range(2):
            with jax.transfer_guard_device_to_device("disallow_explicit"):
                f(np.arange(2))

    assert lines(call) == ["[0 1]", "[0 1]"]


@pytest.mark.parametrize("guard", [lambda: jax.transfer_guard("disallow_explicit"), _guarding_all_threads])
@pytest.mark.parametrize("compiled", [False, True], ids=["new", "compiled"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("jit", [fx.jit, lambda f: f], ids=["fx.jit", "eagerly"])
def test_programs_run_where_transfers_are_forbidden(jit, devices, compiled, guard, lines):
    """Runtime tokens, and what callbacks get and return, are no transfers of the user's."""
    x = jnp.arange(4.0)
    if devices > 1:
        x = jax.device_put(x, jax.NamedSharding(mesh_over(*range(devices)), jax.P("x")))
    for name, f in _programs.items():
        if jit is not fx.jit and (name.startswith(("jax", "io")) or "loop" in name):
            continue  # JAX's own
        program = jit(f)
        if compiled:
            lines(program, x)
        with guard():
            for _ in range(2):
                program(x)
            fx.effects_barrier(timeout=60)
