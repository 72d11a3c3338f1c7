"""Results of operations lie where those of the synchronous program do: in its memory, with its explicit sharding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import effects as fx

pytestmark = pytest.mark.slow

X = jnp.arange(8.0)


def started(f):
    return lambda *args: fx.async_done(fx.async_start(f, *args))


def carried(f):
    def run(*args):
        start = lambda: fx.async_start(f, *args)  # noqa: E731
        return fx.async_done(jax.lax.fori_loop(0, 3, lambda _, future: (fx.async_done(future), start())[1], start()))

    return run


def check(f, *args):
    expected = jax.jit(f)(*args)
    for asynchronous in (started, carried):
        got = fx.jit(asynchronous(f))(*args)
        assert got.sharding == expected.sharding
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
def test_copies_between_memories(kind):
    """A copy to the host's memory, and back."""
    if kind not in {memory.kind for memory in jax.devices()[0].addressable_memories()}:
        pytest.skip(f"the device has no {kind} memory")
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=kind)
    check(lambda x: jax.device_put(x, host), X)
    check(lambda x: jax.device_put(jax.device_put(2 * x, host), jax.memory.Space.Device), X)
    check(lambda x: jax.device_put(x, jax.memory.Space.Device), jax.device_put(X, host))


def test_copies_between_memories_in_lanes():
    f = lambda x: jax.device_put(x * 2, jax.memory.Space.Host)  # noqa: E731
    got = fx.jit(jax.vmap(started(f)))(jnp.stack([X, X]))
    assert got.sharding.memory_kind == jax.jit(jax.vmap(f))(jnp.stack([X, X])).sharding.memory_kind
    np.testing.assert_array_equal(got, 2 * jnp.stack([X, X]))


def test_explicit_shardings():
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("i"))
        check(lambda x: x * 2, x)
        check(lambda x: jax.device_put(x, NamedSharding(mesh, P("i"), memory_kind="pinned_host")), x)
        types = []
        fx.jit(lambda x: types.append(jax.typeof(started(lambda x: x)(x))) or x)(x)
        assert types == [jax.typeof(x)]
        gradient = fx.jit(jax.grad(lambda x: (started(jnp.sin)(x) ** 2).sum()))(x)
        expected = jax.jit(jax.grad(lambda x: (jnp.sin(x) ** 2).sum()))(x)
        assert gradient.sharding == expected.sharding
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
