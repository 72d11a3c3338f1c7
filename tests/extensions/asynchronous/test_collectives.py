"""Collectives in two parts give what the synchronous ones give: values, derivatives and lanes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

N = 4
AROUND = [(i, (i + 1) % N) for i in range(N)]
X = jnp.arange(2.0 * N) + 1


def _in_region(f, check_vma=False):
    mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)


class Sync:
    """The synchronous collectives, under the names of the pairs."""

    done = staticmethod(lambda x: x)

    def permute(self, x):
        return jax.lax.ppermute(x, "i", AROUND)

    def psum(self, x):
        return jax.lax.psum(x, "i")

    def gather(self, x, **options):
        return jax.lax.all_gather(x, "i", **options)

    def all_to_all(self, x, *axes, **options):
        return jax.lax.all_to_all(x, "i", *axes, **options)

    def scatter(self, x, **options):
        return jax.lax.psum_scatter(x, "i", **options)

    def start(self, f, x):
        return f(x)


class Pair(Sync):
    done = staticmethod(fx.async_done)

    def permute(self, x):
        return fx.ppermute_start(x, "i", AROUND)

    def psum(self, x):
        return fx.psum_start(x, "i")

    def gather(self, x, **options):
        return fx.all_gather_start(x, "i", **options)

    def all_to_all(self, x, *axes, **options):
        return fx.all_to_all_start(x, "i", *axes, **options)

    def scatter(self, x, **options):
        return fx.psum_scatter_start(x, "i", **options)

    def start(self, f, x):
        return fx.async_start(f, x)


def overlap(c, x):
    future = c.permute(x)
    z = x * 3
    return c.done(future) * z


def loop(c, x):
    return jax.lax.fori_loop(0, 3, lambda i, x: c.done(c.permute(x * 2)) + 1, x)


def staggered(c, x):
    def turn(i, future):
        return c.permute(jnp.sin(c.done(future)))

    return c.done(jax.lax.fori_loop(0, 2, turn, c.permute(x * x)))


def accumulating(c, x):
    def turn(carry, _):
        total, future = carry
        y = c.done(future)
        return (total + y * y, c.permute(y)), None

    (total, future), _ = jax.lax.scan(turn, (x, c.permute(x)), None, length=N - 2)
    y = c.done(future)
    return total + y * y


def branches(c, x):
    def double(future):
        return c.permute(c.done(future) * 2)

    def hand_on(future):
        return future

    future = jax.lax.cond(jax.lax.psum(x[0], "i") > 3, double, hand_on, c.permute(x))
    return jax.jit(c.done)(future)


def lanes(c, x):
    return jax.vmap(lambda x: overlap(c, x))(x.reshape(2, 1)).reshape(2)


def lanes_of_sum(c, x):
    return jax.vmap(lambda x: c.done(c.psum(x)) * x)(x.reshape(2, 1)).reshape(2)


def tree(c, x):
    a, b = c.done(c.psum((x, {"b": x[:1] * 2})))
    return a * x + b["b"]


def gathered(c, x):
    return c.done(c.gather(x, tiled=True)).reshape(N, 2).sum(0) * x


def gathered_along_a_new_axis(c, x):
    return (c.done(c.gather(x, axis=1)) * jnp.arange(float(N))).sum(1) * x


def to_all(c, x):
    return c.done(c.all_to_all(jnp.outer(jnp.arange(1.0, 1 + N), x), 0, 1, tiled=True)).sum(0)[:2] * x


def to_all_untiled(c, x):
    return c.done(c.all_to_all(jnp.outer(jnp.arange(1.0, 1 + N), x), 0, 0)).sum(0) * x


def scattered(c, x):
    return c.done(c.scatter(jnp.tile(x, N) * jnp.arange(2.0 * N), tiled=True)) * x


def computed(c, x):
    future = c.start(lambda x: (jnp.sin(x), x * 2), x)
    z = x * x
    a, b = c.done(future)
    return a * b + z


PROGRAMS = [
    overlap, loop, staggered, accumulating, branches, lanes, lanes_of_sum, tree, gathered, gathered_along_a_new_axis,
    to_all, to_all_untiled, scattered, computed,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_pair_is_what_the_synchronous_one_is(program):
    """Values, gradients, tangents, and gradients with rematerialization."""
    ours, theirs = (_in_region(lambda x, c=c: program(c, x)) for c in (Pair(), Sync()))

    def loss(f):
        return lambda x: (f(x) * jnp.arange(2.0 * N)).sum()

    def all_of(f):
        backward = jax.grad(loss(f)), jax.grad(loss(jax.checkpoint(f)))
        return lambda x: (f(x), jax.jvp(f, (x,), (x + 1,))[1], *(g(x) for g in backward))

    for one, other in zip(fx.jit(all_of(ours))(X), jax.jit(all_of(theirs))(X), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("program", [overlap, staggered, lanes], ids=lambda program: program.__name__)
def test_with_types_that_say_what_varies(program):
    """Under `check_vma=True`, too."""
    ours, theirs = (_in_region(lambda x, c=c: program(c, x), check_vma=True) for c in (Pair(), Sync()))
    np.testing.assert_allclose(fx.jit(ours)(X), jax.jit(theirs)(X), rtol=1e-5)


@pytest.mark.parametrize("name", ["permute", "psum", "gather", "all_to_all", "scatter"])
def test_program_has_both_ends(name):
    """As it is lowered, and as `fx.inspect` shows it; explicit shardings and the values of the synchronous ones."""
    kinds = {"permute": "ppermute", "gather": "all_gather", "scatter": "psum_scatter"}
    mesh = jax.make_mesh((N,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))

    def region(c):
        def f(x):
            future = getattr(c, name)(*((x, 0, 0) if name == "all_to_all" else (x,)), **options)
            return c.done(future), jnp.sin(x)

        return jax.shard_map(f, out_specs=P("i"))

    options = {} if name in ("permute", "psum") else {"tiled": True}
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(16.0 * N).reshape(4 * N, 4), P("i"))
        for one, other in zip(fx.jit(region(Pair()))(x), jax.jit(region(Sync()))(x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
            assert one.sharding == other.sharding
        text, shown = fx.jit(region(Pair())).lower(x).as_text(), str(fx.inspect(region(Pair()))(x))
    assert 0 < text.index("effects_post") < text.index("effects_take")
    kind = kinds.get(name, name)
    assert 0 <= shown.index(f"{kind}-start") < shown.index(f"{kind}-done")


def test_values_in_between_that_are_explicitly_sharded():
    """What stands between a start and its done comes after the start, also where no device has a whole array."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=2 * (jax.sharding.AxisType.Explicit,))

    def body(x):
        future = fx.psum_start(x, "x")
        doubled = 2 * x
        return fx.async_done(future) + doubled

    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with jax.set_mesh(mesh):
        sharded = jax.device_put(x, jax.NamedSharding(mesh, P("x", "y")))
        program = jax.shard_map(body, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        result = fx.jit(program)(sharded)
    np.testing.assert_array_equal(result, x.sum(0) + 2 * x)


def test_groups_along_one_axis():
    """Devices along one axis exchange among themselves, also where those along another do not come there."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def f(x):
        first = jax.lax.axis_index("b") == 0
        y = jax.lax.cond(first, lambda x: fx.async_done(fx.psum_start(x, "a")), lambda x: x, x)
        return fx.async_done(fx.psum_start(y, ("a", "b")))

    region = jax.shard_map(f, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False)
    x = jnp.arange(4.0).reshape(2, 2)  # the first column: 0 and 2 are 2 each; the second stays: 1 and 3
    assert fx.jit(region)(x).tolist() == [[8.0, 8.0], [8.0, 8.0]]


def test_devices_that_get_nothing_get_zeros():
    """As with `jax.lax.ppermute`."""
    f = _in_region(lambda x: fx.async_done(fx.ppermute_start(x, "i", [(0, 1)])))
    assert fx.jit(f)(X).tolist() == [0, 0, 1, 2, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            lambda x: fx.psum_start(x, "j"),
            "was given the axis 'j', and the axes of the `jax.shard_map` around it are 'i'",
        ),
        (lambda x: fx.ppermute_start(x, "i", [(0, 1), (0, 2)]), "each at most once as a sender"),
        (lambda x: fx.ppermute_start(x, "i", [(0, 9)]), "devices along the axis, 0 to 3"),
        (lambda x: fx.all_to_all_start(x, "i", 0, 0), r"array of shape \(2,\), to be divided along axis 0 between 4"),
        (lambda x: fx.psum_scatter_start(x, "i", tiled=True), "must be a multiple of 4"),
    ],
)
def test_bad_input(start, message):
    """What happened, which rule it broke, and what to do, at the user's line."""
    with pytest.raises(ValueError, match=message) as error:
        fx.jit(_in_region(lambda x: fx.async_done(start(x))))(X)
    assert __file__ in str(error.value)
