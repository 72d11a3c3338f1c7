"""Asynchronous callbacks in programs that XLA divides among devices, and in regions over some axes of a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding

import effects as fx

pytestmark = pytest.mark.slow

P = jax.P
I32 = jax.ShapeDtypeStruct((), np.int32)


def add_one(x):
    fx.print("function {}", x)
    return np.int32(x + 1)


@pytest.mark.parametrize("type_", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_loops_of_the_whole_program_carry_them(type_, lines):
    """One device may come to a done before another, which starts it for all of them, has come to its start."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(type_,))

    @fx.jit
    def program(a):
        def turn(i, carry):
            future, a = carry
            fx.print("turn {}", i)
            a = a + fx.async_done(future)
            return fx.async_callback(add_one, I32, a), a

        future, a = lax.fori_loop(0, 3, turn, (fx.async_callback(add_one, I32, a), a))
        return fx.async_done(future) + a

    x = jax.device_put(np.int32(3), NamedSharding(mesh, P()))
    results = []
    shown = lines(lambda: results.extend(int(program(x)) for _ in range(20)))
    assert results == [63] * 20
    expected = ["turn 0", "function 3", "turn 1", "function 7", "turn 2", "function 15", "function 31"]
    assert shown == expected * 20


def test_statements_between_in_a_region_over_one_axis_of_two(lines):
    """What stands between start and done is tied to them, scalars and arrays of other types than tokens too."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def region(x):
        future = fx.async_callback(add_one, I32, x[0])
        half = jnp.sum(x) * 0.5
        flag = half > 2
        fx.print("between {}", x[0])
        return (fx.async_done(future) + flag)[None]

    program = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))
    results = []
    shown = lines(lambda: results.extend(np.asarray(program(jnp.arange(2, 6, dtype=np.int32))).tolist()))
    assert results == [4, 6]
    assert sorted(shown) == ["between 2", "between 4", "function 2", "function 4"]
    assert [line for line in shown if line.endswith("2")] == ["between 2", "function 2"]


def test_done_twice_is_an_error_on_several_devices():
    """A done whose start is still to come waits for it; one that came before, or was never started, does not."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))

    def program(a):
        future = fx.async_callback(add_one, I32, a)
        ticket, tree = jax.tree.flatten(future)
        again = jax.tree.unflatten(tree, [lax.optimization_barrier(each) for each in ticket])
        return fx.async_done(future) + fx.async_done(again)

    x = jax.device_put(np.int32(3), NamedSharding(mesh, P()))
    with pytest.raises((fx.FutureError, fx.EffectError), match=r"done"):
        fx.jit(program)(x)
        fx.effects_barrier(timeout=60)


@pytest.mark.parametrize("name", ["psum", "ppermute", "all_gather"])
def test_collectives_in_a_region_over_one_axis_of_two(name):
    """The devices along the other axis are as one, and so is what is under way: values and derivatives."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    more = ([(0, 1), (1, 0)],) if name == "ppermute" else ()

    def start_and_end(x):
        future = getattr(fx, f"{name}_start")(x, "x", *more)
        y = jnp.sin(x)
        return y * fx.async_done(future).sum()

    def at_once(x):
        return jnp.sin(x) * getattr(lax, name)(x, "x", *more).sum()

    def loss(body):
        def of_device(x):
            return body(x).sum()[None]

        region = jax.shard_map(of_device, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
        return lambda x: region(x).sum()

    x = jnp.arange(4.0) + 1
    ours, theirs = (jax.value_and_grad(loss(body)) for body in (start_and_end, at_once))
    for one, other in zip(fx.jit(ours)(x), jax.jit(theirs)(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_collective_comes_after_the_print_that_a_callback_waits_for():
    """In a region over one axis of two it is JAX's own. A device that waits in there must have published its print:
    the callback of another, for which that one waits, comes after it."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def region(x):
        fx.print("ahead {}", x[0])
        y = lax.cond(x[0] > 2, lambda x: fx.callback(lambda x: x + 1, I32, x), lambda x: x, x[0])
        future = fx.psum_start(y, "x")
        return fx.async_done(future)[None]

    program = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}))
    with fx.capture():
        for _ in range(30):
            assert program(jnp.array([1, 5], np.int32)).tolist() == [7, 7]
        fx.effects_barrier(timeout=120)
