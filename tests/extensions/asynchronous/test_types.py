"""Results of asynchronous collectives have the types of the synchronous ones: along which axes they may differ."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import effects as fx
from tests.extensions.asynchronous.test_collectives import Pair, Sync

pytestmark = pytest.mark.slow

MESH = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jnp.arange(1.0, 9).reshape(4, 2)
AROUND = [(0, 1), (1, 0)]


def permuted(c, x):
    return c.done(fx.ppermute_start(x, "i", AROUND) if c.asynchronous else lax.ppermute(x, "i", AROUND))


def summed(c, x):
    return c.done(c.psum(x))


def summed_along_both(c, x):
    x = x + 0 * lax.axis_index(("i", "j"))  # it varies along both
    return c.done(fx.psum_start(x, ("i", "j")) if c.asynchronous else lax.psum(x, ("i", "j")))


def summed_constant(c, x):
    return c.done(c.psum(jnp.ones(2))) + 0 * c.done(c.psum(x)).sum()


def summed_booleans(c, x):
    return c.done(c.psum(x > 3)) * 1.0


def gathered(c, x):
    return c.done(c.gather(x, tiled=True))


def gathered_and_the_same(c, x):
    return c.done(c.gather(x, to="invarying"))


def scattered(c, x):
    return c.done(c.scatter(jnp.concatenate([x, x * x]), tiled=True))


def to_all(c, x):
    return c.done(c.all_to_all(jnp.concatenate([x, x * x]), 0, 0, tiled=True))


def in_loop(c, x):
    def turn(i, future):
        return c.psum(jnp.sin(c.done(future)) * x)

    return c.done(lax.fori_loop(0, 3, turn, c.psum(x)))


def in_branches(c, x):
    return c.done(lax.cond(c.done(c.psum(x.sum())) > 3, c.psum, lambda x: c.psum(x * x), x))


def in_lanes(c, x):
    return jax.vmap(lambda x: c.done(c.psum(x)) * c.done(c.gather(x, to="invarying")).sum())(x)


def computed(c, x):
    return c.done(c.start(lambda x: (x * x, jnp.ones(2)), c.done(c.psum(x))))[0]


ALL = [
    permuted, summed, summed_along_both, summed_constant, summed_booleans, gathered, gathered_and_the_same, scattered,
    to_all, in_loop, in_branches, in_lanes, computed,
]  # fmt: skip


class Ours(Pair):
    asynchronous = True


class Theirs(Sync):
    asynchronous = False


def _spec(type_):
    """The spec of the first axis that an output needs, after what its type says."""
    varying = type_.manual_axis_type.varying
    return P(tuple(axis for axis in ("i", "j") if axis in varying) or None)


ALONG_BOTH = [summed_along_both, summed_constant, gathered, gathered_and_the_same, scattered, in_branches]


@pytest.mark.parametrize(
    ("program", "varies"),
    [*((program, P("i")) for program in ALL), *((program, P(("i", "j"))) for program in ALONG_BOTH)],
    ids=[*(program.__name__ for program in ALL), *(f"{program.__name__} along both" for program in ALONG_BOTH)],
)
def test_types_values_and_derivatives_are_those_of_the_synchronous_one(program, varies):
    """With the types checked: the least `out_specs` that JAX accepts are accepted here, too."""
    types = {}

    def traced(c):
        def body(x):
            y = program(c, x)
            types[type(c)] = jax.typeof(y)
            return y.sum(keepdims=True).reshape(1)

        return body

    def region(c, spec):
        return jax.shard_map(traced(c), mesh=MESH, in_specs=varies, out_specs=spec)

    whole = P(("i", "j"))
    jax.eval_shape(region(Theirs(), whole), X)
    spec = _spec(types[Theirs])
    ours, theirs = region(Ours(), spec), region(Theirs(), spec)

    def all_of(f):
        def weighted(x):
            return (f(x) * jnp.arange(1.0, 1 + f(x).size)).sum()

        backward = jax.grad(weighted), jax.grad(lambda x: jax.checkpoint(f)(x).sum())
        return lambda x: (f(x), jax.jvp(f, (x,), (x + 1,))[1], *(g(x) for g in backward))

    a, b = fx.jit(all_of(ours))(X), jax.jit(all_of(theirs))(X)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), a, b)
    assert types[Ours] == types[Theirs]


def test_second_derivatives():
    """The transpose of a sum, differentiated again."""

    def loss(c):
        region = jax.shard_map(lambda x: c.done(c.psum(jnp.sin(x))) ** 2, mesh=MESH, in_specs=P("i"), out_specs=P())
        return lambda x: (region(x) ** 2).sum()

    ours, theirs = (jax.jacfwd(jax.grad(loss(c))) for c in (Ours(), Theirs()))
    np.testing.assert_allclose(fx.jit(ours)(X), jax.jit(theirs)(X), rtol=1e-5)


def test_where_types_are_not_checked():
    """The option changes nothing there, and neither does the type of what is sent."""

    def body(c):
        return lambda x: c.done(c.gather(c.done(c.psum(x)), to="invarying")).sum(0)

    ours, theirs = (
        jax.shard_map(body(c), mesh=MESH, in_specs=P("i"), out_specs=P(), check_vma=False) for c in (Ours(), Theirs())
    )
    np.testing.assert_allclose(fx.jit(ours)(X), jax.jit(theirs)(X), rtol=1e-5)


@pytest.mark.parametrize("to", ["other", "reduced"])
def test_a_type_that_there_is_not(to):
    """What happened, which rule it broke, and what to do, at the user's line."""
    f = jax.shard_map(
        lambda x: fx.async_done(fx.all_gather_start(x, "i", to=to)), mesh=MESH, in_specs=P("i"), out_specs=P("i")
    )
    with pytest.raises(ValueError, match=f"was given `to='{to}'`") as error:
        fx.jit(f)(X)
    assert __file__ in str(error.value)


def test_gathered_weights_are_reduced():
    """Of weights that are gathered and then cast to the type "reduced" each device gets the cotangents of its part,
    summed over all devices, as with the synchronous gather to that type."""
    with jax.set_mesh(jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)):
        x = jnp.arange(8.0, out_sharding=P("i")).reshape(4, 2)
        w = jax.device_put(jnp.arange(12.0).reshape(2, 6), P("i", None))

        def loss(c):
            def gather(w):
                if c.asynchronous:
                    gathered = lax.pcast(c.done(c.gather(w, tiled=True, to="invarying")), "i", to="reduced")
                else:
                    gathered = c.gather(w, tiled=True, to="reduced")
                assert jax.typeof(gathered).manual_axis_type.reduced == {"i"}
                return gathered

            whole = jax.shard_map(gather, in_specs=P("i", None), out_specs=P(None, None, reduced={"i"}))
            return lambda x, w: (jnp.einsum("td,df->tf", x, whole(w)) ** 2).sum()

        for transform in (lambda f: f, functools.partial(jax.grad, argnums=(0, 1))):
            ours, theirs = fx.jit(transform(loss(Ours())))(x, w), jax.jit(transform(loss(Theirs())))(x, w)
            for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(one, other)
                assert one.sharding == other.sharding
