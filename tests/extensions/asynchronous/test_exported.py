"""Exported programs with asynchronous operations, in this process and in another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.export.common import again, run_with

pytestmark = pytest.mark.slow

MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
F32 = jax.ShapeDtypeStruct((), "float32")


@fx.register_callback("tests.twice")
def twice(x, *, record=None):
    return {"twice": 2 * x}


def values(x):
    """Started, updated, and carried by a loop."""
    fx.print("begin {}", x)
    future = fx.async_start(lambda x: (x * x, x), x)
    future = fx.async_update(future)
    turn = lambda i, future: fx.async_start(lambda x, y: (x + 1, y), *fx.async_done(future))  # noqa: E731
    y, x = fx.async_done(jax.lax.fori_loop(0, 3, turn, future))
    fx.print("end {} {}", x, y)
    return y


def function(x):
    """Of a callback, which another process knows by its name."""
    future = fx.async_callback(twice, {"twice": F32}, x)
    fx.print("between {}", x)
    y = fx.async_done(future)["twice"]
    fx.print("end {}", y)
    return y


def ring(x):
    """Between devices."""

    def body(x):
        future = fx.ppermute_start(x, "i", [(i, (i + 1) % 4) for i in range(4)])
        fx.print("between {}", x)
        return fx.async_done(future)

    return jax.shard_map(body, mesh=MESH, in_specs=jax.P("i"), out_specs=jax.P("i"))(x)


WRONG_PROGRAM_KIND = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp, effects as fx

@fx.register_callback("tests.twice")
def twice(x):
    return {"twice": 2 * x}

program = fx.deserialize(open(sys.argv[1], "rb").read())
x = jnp.float32(3)
if program.nr_devices > 1:
    x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(jax.make_mesh((4,), ("i",)), jax.P("i")))
y = fx.jit(program.call)(x)
fx.effects_barrier()
print(y)
"""


@pytest.mark.parametrize("program", [values, function, ring], ids=lambda program: program.__name__)
def test_exported_program_runs_here_and_elsewhere(program, lines):
    x = jnp.float32(3)
    if program is ring:
        x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(MESH, jax.P("i")))
    results = []
    expected = lines(lambda: results.append(fx.jit(program)(x)))
    exported = fx.export(fx.jit(program))(x)
    assert lines(lambda: results.append(fx.jit(again(exported).call)(x))) == expected
    assert results[0].tolist() == results[1].tolist()
    done = run_with(WRONG_PROGRAM_KIND, exported.serialize())
    assert done.stdout.splitlines() == [*expected, str(results[0])], done.stderr


@pytest.mark.parametrize("spec", [jax.P(), jax.P("x")], ids=["replicated", "sharded"])
def test_statements_between_over_devices(spec, lines):
    """What stands between start and done is tied to them, in a program that XLA distributes over devices."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.arange(4, dtype=np.float32), jax.sharding.NamedSharding(mesh, spec))

    def f(x):
        future = fx.async_start(lambda x: x + 1, x)
        y = x * x
        fx.print("between {}", y)
        return y + fx.async_done(future)

    call = fx.deserialize(fx.export(fx.jit(f))(x).serialize()).call
    assert lines(lambda: np.testing.assert_array_equal(call(x), [1, 3, 7, 13])) == ["between [0. 1. 4. 9.]"]
