"""What is started in the lanes of a `vmap` may be done in the turns of a loop, and the other way round. And operations
without results, outside of jit, and of narrow types."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx

pytestmark = pytest.mark.slow

X = jnp.arange(12.0).reshape(3, 2, 2)


def in_turns(f):
    return functools.partial(jax.lax.map, f)


def values(x):
    return fx.async_start(lambda x: 2 * x, x)


def callback(x):
    return fx.async_callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


AROUND = {
    "lanes": jax.vmap,
    "turns": in_turns,
    "lanes of lanes": lambda f: jax.vmap(jax.vmap(f)),
    "lanes of turns": lambda f: jax.vmap(in_turns(f)),
    "turns of lanes": lambda f: in_turns(jax.vmap(f)),
}
PAIRS = [(a, b) for a in AROUND for b in AROUND if (" of " in a) == (" of " in b)]


@pytest.mark.parametrize("start", [values, callback])
@pytest.mark.parametrize(("started", "done"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_started_and_done_in_lanes_and_turns(start, started, done):
    """Values, and derivatives of operations that have some."""

    def f(x):
        return AROUND[done](fx.async_done)(AROUND[started](start)(x))

    np.testing.assert_array_equal(fx.jit(f)(X), 2 * X)
    if start is values:
        np.testing.assert_array_equal(fx.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(X), 8 * X)
    fx.effects_barrier()


def test_summed_up_by_a_loop():
    @fx.jit
    def f(x):
        futures = jax.vmap(values)(x)
        return jax.lax.scan(lambda total, future: (total + fx.async_done(future), None), jnp.zeros((2, 2)), futures)[0]

    np.testing.assert_array_equal(f(X), 2 * X.sum(0))


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["alone", "lanes"])
@pytest.mark.parametrize("results", [None, ()])
def test_operations_without_results(results, transform):
    seen = []

    @fx.jit
    def f(x):
        def each(x):
            future = fx.async_update(fx.async_callback(lambda x: (seen.append(float(x)), results)[1], results, x))
            assert fx.async_done(future) == results
            return x

        return transform(each)(x)

    f(jnp.arange(3.0) if transform is jax.vmap else 0.0)
    fx.effects_barrier()
    assert sorted(seen) == ([0.0, 1.0, 2.0] if transform is jax.vmap else [0.0])


def test_started_print(lines):
    """A function without results, of which only the effect is seen, carried by a loop."""

    @fx.jit
    def f(x):
        start = lambda i: fx.async_start(lambda i: fx.print("{}", i), i)  # noqa: E731

        def turn(i, future):
            fx.async_done(future)
            return start(i + 1)

        assert fx.async_done(jax.lax.fori_loop(0, 3, turn, start(0))) is None
        return x

    assert lines(lambda: f(1.0)) == ["0", "1", "2", "3"]


def test_without_jit():
    with jax.disable_jit():
        assert fx.async_done(values(jnp.float32(2))) == 4
        assert fx.async_done(callback(jnp.float32(2))) == 4
        assert fx.jit(lambda x: fx.async_done(fx.async_update(values(x))))(2.0) == 4


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_narrow_types(dtype):
    """They take less than a byte in the memory of a device."""
    x = jnp.asarray([0, 1] * 2048).astype(dtype)
    kept = fx.jit(lambda x: fx.async_done(fx.async_start(lambda x: x, x)))
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    around = [(i, (i + 1) % 4) for i in range(4)]

    def exchange(x):
        return fx.async_done(fx.ppermute_start(x, "i", around)), fx.async_done(fx.all_gather_start(x, "i", tiled=True))

    sent = fx.jit(jax.shard_map(exchange, mesh=mesh, in_specs=P("i"), out_specs=(P("i"), P()), check_vma=False))
    for _ in range(20):
        assert kept(x).dtype == dtype and (kept(x) == x).all()
        moved, gathered = sent(x)
        assert moved.dtype == gathered.dtype == dtype and (moved == x).all() and (gathered == x).all()
    if "int" in dtype:
        called = fx.jit(lambda x: fx.async_done(fx.async_callback(lambda x: x, x, x)))(x)
        assert called.dtype == dtype and (called == x).all()


JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}
CONSTANTS = {
    "itself": lambda x, number: (number, number),
    "beside an operand": lambda x, number: (x, number),
    "in a dictionary": lambda x, number: {"x": x, "number": number},
}


@pytest.mark.parametrize("jit", JITS)
@pytest.mark.parametrize("number", [True, 2, 2.5, 1j], ids=lambda number: type(number).__name__)
@pytest.mark.parametrize("form", CONSTANTS)
def test_functions_may_return_numbers_of_pythons(form, number, jit):
    """JAX leaves these in the jaxpr as they are."""

    def whole(x):
        lanes = jax.vmap(lambda x: fx.async_done(fx.async_start(lambda x: CONSTANTS[form](x, number), x)))(x)
        return fx.async_done(fx.async_update(fx.async_start(lambda n: CONSTANTS[form](n, number), number))), lanes

    x = jnp.arange(2.0)
    alone, lanes = JITS[jit](whole)(x)
    leaves = [*jax.tree.leaves(alone), *jax.tree.leaves(lanes)]
    expected = [*jax.tree.leaves(CONSTANTS[form](number, number)), *jax.tree.leaves(CONSTANTS[form](x, number))]
    assert len(leaves) == len(expected)
    for leaf, each in zip(leaves, expected, strict=True):
        assert leaf.dtype == jnp.asarray(each).dtype
        np.testing.assert_array_equal(leaf, each)
    fx.effects_barrier()
