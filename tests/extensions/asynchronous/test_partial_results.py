"""What an operation has come to so far, and its derivatives: those of a program that uses the results twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

N = 4
MESH = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
X = jnp.arange(2.0 * N * N).reshape(N, 2 * N) + 1


def _pair(start):
    """Both uses of an operation: of the partial result, and of the result."""

    def use(x):
        future, so_far = fx.async_update(start(x), partial=True)
        return so_far, fx.async_done(future)

    return use


def _twice(f):
    return lambda x: (f(x), f(x))


OPERATIONS = {
    "value": (_pair(lambda x: fx.async_start(jnp.sin, x)), _twice(jnp.sin)),
    "ppermute": (
        _pair(lambda x: fx.ppermute_start(x, "i", [(i, (i + 1) % N) for i in range(N)])),
        _twice(lambda x: jax.lax.ppermute(x, "i", [(i, (i + 1) % N) for i in range(N)])),
    ),
    "psum": (_pair(lambda x: fx.psum_start(x, "i")), _twice(lambda x: jax.lax.psum(x, "i"))),
    "all_to_all": (
        _pair(lambda x: fx.all_to_all_start(x, "i", 0, 0, tiled=True)),
        _twice(lambda x: jax.lax.all_to_all(x, "i", 0, 0, tiled=True)),
    ),
}
USES = {
    "both": lambda so_far, result: so_far**2 * jnp.cos(result),
    "the partial one": lambda so_far, result: so_far**3,
    "the result": lambda so_far, result: result**3,
}


def _loss(use, body):
    def of_device(x):
        x = x.reshape(-1)
        return (jnp.arange(1.0, 1 + x.size) * use(*body(jnp.sin(x)))).reshape(1, -1)

    region = jax.shard_map(of_device, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return lambda x: region(x).sum()


@pytest.mark.parametrize(
    "operation, use", [*((name, "both") for name in OPERATIONS), ("psum", "the partial one"), ("psum", "the result")]
)
def test_derivatives(operation, use):
    """Forward, backward, and forward of backward, also in lanes."""

    def all_of(f):
        return lambda x: (
            jax.jvp(f, (x,), (x,)),
            jax.jvp(jax.grad(f), (x,), (x,)),
            jax.vmap(jax.grad(f))(jnp.stack([x, x + 1, 2 * x])),
        )

    ours, theirs = (all_of(_loss(USES[use], body)) for body in OPERATIONS[operation])
    one, other = fx.jit(ours)(X), jax.jit(theirs)(X)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-3, atol=1e-4), one, other)


def test_two_derivatives_backward():
    """Of values they are there. What a collective adds up cannot be sent back."""

    def second(body):
        first = jax.grad(_loss(USES["both"], body))
        return jax.grad(lambda x: (first(x) * X).sum())

    ours, theirs = (second(body) for body in OPERATIONS["value"])
    np.testing.assert_allclose(fx.jit(ours)(X), jax.jit(theirs)(X), rtol=2e-3, atol=1e-4)
    with pytest.raises(fx.NotDifferentiable, match="Two derivatives that go backward") as raised:
        fx.jit(second(OPERATIONS["ppermute"][0]))(X)
    assert __file__ in str(raised.value)


@pytest.mark.parametrize("lanes", [(3,), (2, 3)])
def test_lanes_of_parts_for_all(lanes):
    """What has been received lies by device first, and by lane within."""
    x = jnp.arange(float(np.prod(lanes) * N * N)).reshape(*lanes, N, N)

    def in_lanes(body):
        def of_device(x):
            of_lanes = lambda x: body(x.reshape(-1))  # noqa: E731
            for _ in lanes:
                of_lanes = jax.vmap(of_lanes)
            return jnp.stack(of_lanes(x))

        spec = P(*(None,) * len(lanes), "i")
        return jax.shard_map(of_device, mesh=MESH, in_specs=spec, out_specs=P(None, *spec), check_vma=False)

    ours, theirs = (fx.jit(in_lanes(body)) for body in OPERATIONS["all_to_all"])
    np.testing.assert_array_equal(ours(x), theirs(x))
