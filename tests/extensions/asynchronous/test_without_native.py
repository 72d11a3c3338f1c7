"""Asynchronous operations where there are no native handlers: in straight programs their values stay in these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.asynchronous.test_collectives import (
    Pair,
    Sync,
    X,
    _in_region,
    computed,
    gathered,
    lanes,
    lanes_of_sum,
    overlap,
    scattered,
    staggered,
    to_all,
    tree,
)

STRAIGHT = [overlap, lanes, lanes_of_sum, tree, gathered, scattered, to_all, computed]


@pytest.fixture(autouse=True)
def without_native():
    with fx.config.override(native=False):
        yield


@pytest.mark.parametrize("program", STRAIGHT, ids=lambda program: program.__name__)
def test_collectives_in_straight_programs(program):
    """Values, tangents and gradients are those of the synchronous ones."""
    ours, theirs = (_in_region(lambda x, c=c: program(c, x)) for c in (Pair(), Sync()))

    def check(transform):
        np.testing.assert_allclose(fx.jit(transform(ours))(X), jax.jit(transform(theirs))(X), rtol=1e-4)

    check(lambda f: f)
    check(lambda f: lambda x: jax.jvp(f, (x,), (x + 1,))[1])
    check(lambda f: jax.grad(lambda x: (f(x) * jnp.arange(8.0)).sum()))


def test_values_in_branches_and_iterations(lines):
    """Start and done stand in one branch or one body of a loop, among effects of the host."""

    @fx.jit
    def f(x):
        def turn(i, x):
            future = fx.async_start(jnp.sin, x)
            fx.print("turn {}", i)
            return 2 * fx.async_done(fx.async_update(fx.async_update(future)))

        x = jax.lax.fori_loop(0, 2, turn, x)
        return jax.lax.cond(x > 0, lambda: sum(fx.async_done(fx.async_start(lambda x: (x, 2 * x), x))), lambda: x)

    result = []
    assert lines(lambda: result.append(float(f(1.0)))) == ["turn 0", "turn 1"]
    assert result == pytest.approx([6 * np.sin(2 * np.sin(1.0))])


def test_values_in_programs_that_jax_dispatches():
    """There is one function, too."""
    assert float(jax.jit(lambda x: fx.async_done(fx.async_start(lambda x: 2 * x, x)))(3.0)) == 6


@pytest.mark.parametrize("barrier", [lambda x: x, jax.lax.optimization_barrier])
def test_a_barrier_of_the_users_is_none_of_ours(barrier):
    """What is beside a ticket there is not what the operation has come to."""

    def f(x):
        future, _ = barrier((fx.async_start(lambda x: 2 * x, x), x))
        return fx.async_done(future)

    if barrier is jax.lax.optimization_barrier:
        with pytest.raises(NotImplementedError, match="Without them start and done must be in the same"):
            fx.jit(f)(1.0)
    else:
        assert float(fx.jit(f)(1.0)) == 2


def test_a_loop_that_carries_a_future_is_refused():
    """What is in flight would have to be found by its ticket."""
    region = _in_region(lambda x: staggered(Pair(), x))
    with pytest.raises(NotImplementedError, match="in the same function, branch or body of a loop") as error:
        fx.jit(region)(X)
    assert "test_collectives.py" in str(error.value)


def test_callbacks_are_refused():
    """Their functions begin from records that handlers publish."""
    with pytest.raises(NotImplementedError, match="there are no asynchronous callbacks"):
        fx.jit(lambda: fx.async_done(fx.async_callback(lambda: 1, jax.ShapeDtypeStruct((), "int32"))))()


def test_regions_for_other_platforms():
    """The collective is JAX's, and no handler is called."""
    mesh = jax.sharding.AbstractMesh((4,), ("i",))
    specs = {"in_specs": jax.P("i"), "out_specs": jax.P("i")}
    region = jax.shard_map(lambda x: overlap(Pair(), x), mesh=mesh, check_vma=False, **specs)
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=jax.NamedSharding(mesh, jax.P("i")))
    with fx.config.override(native=True):
        text = jax.jit(region).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    assert "collective_permute" in text
    assert "@effects_" not in text
