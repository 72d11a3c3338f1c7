"""What JAX's own tests of asynchronous collectives ask of its pairs, asked of ours: the same operations on the same
meshes, and the values of the synchronous collectives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.environment import xla_flags
from tests.forks import run_forked

pytestmark = pytest.mark.slow

P = jax.P


def _around():
    size = lax.axis_size("i")
    return [(i, (i + 1) % size) for i in range(size)]


SYNCHRONOUS = {
    "all_gather": lambda x: lax.all_gather(x, "i", tiled=True, to="invarying"),
    "psum": lambda x: lax.psum(x, "i"),
    "psum_scatter": lambda x: lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True),
    "all_to_all": lambda x: lax.all_to_all(x, "i", split_axis=0, concat_axis=0, tiled=True),
    "ppermute": lambda x: lax.ppermute(x, "i", _around()),
}
STARTS = {
    "all_gather": lambda x: fx.all_gather_start(x, "i", tiled=True, to="invarying"),
    "psum": lambda x: fx.psum_start(x, "i"),
    "psum_scatter": lambda x: fx.psum_scatter_start(x, "i", scatter_dimension=0, tiled=True),
    "all_to_all": lambda x: fx.all_to_all_start(x, "i", split_axis=0, concat_axis=0, tiled=True),
    "ppermute": lambda x: fx.ppermute_start(x, "i", _around()),
}
NAMES = [*STARTS]
SPECS = {"all_gather": P(None)}  # of what a collective gives; else `P("i")`


def _operand(name, devices, part):
    shapes = {"psum_scatter": (devices * part, part), "all_to_all": (devices * part, part, part)}
    if name in shapes:
        return jnp.ones(shapes[name], jnp.float32, out_sharding=P("i"))
    return jnp.arange(devices * 32.0 * part, out_sharding=P("i"))


def _explicit_mesh(devices):
    return jax.set_mesh(jax.make_mesh((devices,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,)))


def _on_each_device(x):
    return [np.asarray(shard.data) for shard in sorted(x.addressable_shards, key=lambda shard: shard.device.id)]


def check_values(name, devices, part=128, tell_apart=False):
    """Compares what each device gets, with a product of matrices beside the collective.

    `part` is the size of what a device has; JAX's tests have the default. With `tell_apart`, devices and elements
    differ, where JAX's tests have ones.
    """
    with _explicit_mesh(devices):
        x = _operand(name, devices, part)
        if tell_apart:
            x = x * jnp.arange(float(x.size), out_sharding=P("i")).reshape(x.shape)

        @jax.jit
        @jax.shard_map(out_specs=(SPECS.get(name, P("i")), P("i")))
        def synchronous(x, a):
            a = a @ a
            return SYNCHRONOUS[name](x), a

        @fx.jit
        @jax.shard_map(out_specs=(SPECS.get(name, P("i")), P("i")))
        def done_at_once(x, a):
            a = a @ a
            return fx.async_done(STARTS[name](x)), a

        @fx.jit
        @jax.shard_map(out_specs=(SPECS.get(name, P("i")), P("i")))
        def overlapped(x, a):
            future = STARTS[name](x)
            a = a @ a
            return fx.async_done(future), a

        a = jnp.ones((devices * 8 * part, 8 * part), out_sharding=P("i"))
        expected, product = synchronous(x, a)
        for program in (done_at_once, overlapped):
            got, ours = program(x, a)
            for one, other in zip(_on_each_device(got), _on_each_device(expected), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)
            np.testing.assert_array_equal(ours, product)


def _lowered(name):
    with _explicit_mesh(2):

        @jax.shard_map(out_specs=SPECS.get(name, P("i")))
        def f(x):
            return fx.async_done(STARTS[name](x))

        x = jnp.arange(64.0, out_sharding=P("i"))
        return fx.jit(f).lower(x).as_text(), str(fx.inspect(f)(x))


@pytest.mark.parametrize("name", NAMES)
def test_program_has_both_ends(name):
    """As it is lowered, and as `fx.inspect` shows it."""
    text, shown = _lowered(name)
    assert 0 < text.index("effects_post") < text.index("effects_take")
    assert 0 <= shown.index(f"{name}-start") < shown.index(f"{name}-done")


@pytest.mark.parametrize("name", NAMES)
def test_values(name):
    check_values(name, jax.device_count(), part=16, tell_apart=True)


def test_values_on_eight_devices():
    """As many as JAX's tests ask for, with their operands."""
    code = f"from {__name__} import NAMES, check_values\nfor name in NAMES: check_values(name, 8)\nprint('same')"
    done = run_forked(code, env={"XLA_FLAGS": xla_flags(8)})
    assert done.stdout == "same\n", done.stderr[-3000:]
