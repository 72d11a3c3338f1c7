"""Simulated kernels with effects, transformed, and among other parts of a program."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import effects as fx
from tests.extensions.kernels.simulation import (
    INT,
    X,
    blocks,
    copy_kernel,
    copying,
    dynamic,
    prefetching,
    seen_of,
)

pytestmark = pytest.mark.slow

INTEGER = jax.ShapeDtypeStruct((), jnp.int32)


def test_vmap():
    """The lane is the first axis of the grid, for one lane as for several."""
    call = functools.partial(pl.pallas_call(copy_kernel, out_shape=INT, interpret=True, **blocks(4)))
    for lanes in (1, 2):
        _, seen = seen_of(fx.jit(jax.vmap(call)), jnp.stack([X + 10 * lane for lane in range(lanes)]))
        assert seen == [(str(10 * lane + 4 * i), (lane, i), ()) for lane in range(lanes) for i in range(2)]


def test_vmap_of_what_does_not_differ():
    """A kernel none of whose operands has lanes runs in each of them, as other effects do."""
    result, seen = seen_of(fx.jit(jax.vmap(lambda y: copying(X)[0] + y)), jnp.arange(3))
    assert result.tolist() == [0, 1, 2] and seen == [("0", (lane,), ()) for lane in range(3)]


def test_result_that_does_not_differ():
    """So it may leave `vmap` without lanes, as the result of a kernel without effects may."""
    program = fx.jit(jax.vmap(copying, in_axes=None, out_axes=None, axis_size=2))
    result, seen = seen_of(program, X)
    assert result.tolist() == X.tolist() and seen == [("0", (lane,), ()) for lane in range(2)]


def test_vmap_of_vmap():
    program = fx.jit(jax.vmap(jax.vmap(copying)))
    assert seen_of(program, jnp.arange(16).reshape(2, 2, 4))[1] == [
        (str(8 * i + 4 * j), (i, j), ()) for i in range(2) for j in range(2)
    ]


SIZES, STARTS = jnp.array([[3, 1], [1, 5]]), jnp.array([[[1, 0], [0, 1]], [[0, 0], [1, 1]]])


@pytest.mark.parametrize(
    ("f", "given", "jit"),
    [(dynamic, SIZES, fx.jit), (prefetching, STARTS, lambda f: f)],
    ids=["dynamic grid", "prefetch"],
)
def test_two_vmaps_as_loops(f, given, jit):
    """The lanes of the outer `vmap` come first, whichever of the two gives lanes to what the grid depends on."""
    xs = jnp.arange(32).reshape(2, 2, 8)
    both = jit(jax.vmap(jax.vmap(f)))
    inner = jit(jax.vmap(jax.vmap(f), (None, 0)))
    outer = jit(jax.vmap(jax.vmap(f, (None, 0))))
    neither = jit(jax.vmap(lambda _: jax.vmap(lambda _: f(given[0, 0], X))(X[:2])))
    once = fx.jit(f)
    for program, args, of_lane in (
        (both, (given, xs), lambda i, j: (given[i, j], xs[i, j])),
        (inner, (given[0], xs), lambda i, j: (given[0, j], xs[i, j])),
        (outer, (given[:, 0], xs), lambda i, j: (given[i, 0], xs[i, j])),
        (neither, (X[:2],), lambda i, j: (given[0, 0], X)),
    ):
        result, seen = seen_of(program, *args)
        expected = []
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            alone, records = seen_of(once, *of_lane(i, j))
            expected += [(text.split()[0], (i, j, *grid)) for text, grid, _ in records]
            assert result[i, j].tolist() == alone.tolist()
        # In lanes JAX's `pl.num_programs` is wrong for a size that only data says and that does not differ.
        assert [(text.split()[0], grid) for text, grid, _ in seen] == expected


def test_lanes_of_a_loop_that_are_not_there():
    """Under a predicate that differs, the lanes that are there make their grids, the outer ones first."""

    def f(size, x):
        return jax.lax.cond(x[0] % 16 == 8, lambda: dynamic(size, x), lambda: x)

    _, seen = seen_of(fx.jit(jax.vmap(jax.vmap(f))), SIZES, jnp.arange(32).reshape(2, 2, 8))
    assert [grid for _, grid, _ in seen] == [(0, 1, 0), (1, 1, 0), (1, 1, 2), (1, 1, 4)]


def test_predicate_that_differs_between_lanes():
    """The lanes that choose the branch have its effects, callbacks with results too; the others' programs have none."""

    def kernel(x_ref, o_ref):
        doubled = fx.callback(lambda x: x * 2, INTEGER, x_ref[0])
        jax.lax.fori_loop(0, 2, lambda i, _: fx.print("{} {}", i, doubled), None)
        o_ref[...] = x_ref[...]

    def f(y):
        return jax.lax.cond(y % 2 == 1, lambda y: copying(X + y, kernel), lambda _: X, y)

    result, seen = seen_of(fx.jit(jax.vmap(f)), jnp.arange(4))
    assert [(text, grid) for text, grid, _ in seen if "(" not in text] == [
        (f"{i} {2 * lane}", (lane,)) for lane in (1, 3) for i in range(2)
    ]
    assert result[:, 0].tolist() == [0, 1, 0, 3]


def test_loop_whose_iterations_differ_between_lanes():
    def f(n):
        return jax.lax.fori_loop(0, n, lambda i, x: copying(x) + 1, X)

    _, seen = seen_of(fx.jit(jax.vmap(f)), jnp.array([2, 0, 1]))
    assert sorted(seen) == [("0", (0,), ()), ("0", (2,), ()), ("1", (0,), ())]


def test_derivatives():
    """The kernel has the effects once, whatever of its inputs is differentiated, and under `vmap` in each lane."""

    def kernel(x_ref, y_ref, o_ref):
        fx.print("{}", x_ref[0])
        o_ref[...] = x_ref[...] * y_ref[...]

    def f(x, y):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((2,), jnp.float32), interpret=True)(x, y)

    x = jnp.array([2.0, 3.0])
    (value, tangent), seen = seen_of(fx.jit(lambda x: jax.jvp(lambda x: f(x, x + 1), (x,), (x,))), x)
    assert value.tolist() == [6, 12] and tangent.tolist() == [10, 21] and seen == [("2.0", (), ())]
    (_, tangent), seen = seen_of(fx.jit(lambda x: jax.jvp(lambda y: f(x, y), (x,), (x,))), x)
    assert tangent.tolist() == [4, 9] and seen == [("2.0", (), ())]
    xs = jnp.stack([x, x + 1])
    for g in (
        lambda xs: jax.jvp(jax.vmap(lambda x: f(x, x)), (xs,), (xs,)),
        jax.vmap(lambda x: jax.jvp(lambda x: f(x, x), (x,), (x,))),
    ):
        (_, tangent), seen = seen_of(fx.jit(g), xs)
        assert tangent.tolist() == [[8, 18], [18, 32]] and seen == [("2.0", (0,), ()), ("3.0", (1,), ())]


def test_custom_vjp():
    @jax.custom_vjp
    def f(x):
        return copying(x)

    f.defvjp(lambda x: (copying(x), ()), lambda _, g: (copying(g * 3),))
    result, seen = seen_of(fx.jit(jax.grad(lambda x: f(x).sum())), jnp.array([2.0, 4.0]))
    assert result.tolist() == [3, 3] and [text for text, _, _ in seen] == ["2.0", "3.0"]
