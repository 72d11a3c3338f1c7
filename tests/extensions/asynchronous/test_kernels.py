"""A Pallas kernel is started like any function: its effects are at the start, its results are there at the done."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import effects as fx

pytestmark = pytest.mark.slow

X = jnp.arange(8.0)


def _kernel(x_ref, out_ref):
    fx.print("block {} begins with {}", pl.program_id(0), x_ref[0])
    out_ref[...] = 2 * x_ref[...]


_BLOCKS = pl.BlockSpec((4,), lambda i: (i,))
_double = pl.pallas_call(
    _kernel,
    out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype),
    grid=(2,),
    in_specs=[_BLOCKS],
    out_specs=_BLOCKS,
    interpret=True,
)


def _in_a_program(x):
    future = fx.async_start(_double, x, name="double")
    fx.print("between {}", x[1])
    return fx.async_done(future)


def _blocks(x):
    return [f"block {i} begins with {x[4 * i]}" for i in range(2)]


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint, jax.jit], ids=["straight", "remat", "jit"])
def test_effects_and_results(lines, around):
    results = []
    assert lines(lambda: results.append(fx.jit(around(_in_a_program))(X))) == [*_blocks(X), "between 1.0"]
    np.testing.assert_array_equal(results[0], 2 * X)


def test_future_is_carried_by_a_loop(lines):
    """Each turn ends the kernel of the one before, and starts the next."""

    @fx.jit
    def f(x):
        def turn(i, future):
            fx.print("turn {}", i)
            return fx.async_start(_double, fx.async_done(future))

        return fx.async_done(jax.lax.fori_loop(0, 2, turn, fx.async_start(_double, x)))

    results = []
    seen = lines(lambda: results.append(f(X)))
    assert seen == [*_blocks(X), "turn 0", *_blocks(2 * X), "turn 1", *_blocks(4 * X)]
    np.testing.assert_array_equal(results[0], 8 * X)


def test_lanes(lines):
    """One kernel runs for all lanes."""
    results = []
    xs = jnp.stack([X, X + 10])
    seen = lines(lambda: results.append(fx.jit(jax.vmap(_in_a_program))(xs)))
    assert sorted(seen) == sorted([*_blocks(X), *_blocks(X + 10), "between 1.0", "between 11.0"])
    assert seen[-2:] == ["between 1.0", "between 11.0"]
    np.testing.assert_array_equal(results[0], 2 * xs)


def test_inspected():
    (operation,) = fx.inspect(_in_a_program)(X).operations
    assert (operation.name, operation.kind) == ("double", "async_start")
    assert [line.split()[0] for line in operation.between] == ["slice", "squeeze", "print"]


def test_operations_in_kernels_are_refused():
    """The error comes while tracing, also without `fx.jit`."""

    def kernel(x_ref, out_ref):
        future = fx.async_callback(np.sin, jax.ShapeDtypeStruct((4,), X.dtype), x_ref[...])
        out_ref[...] = fx.async_done(future)

    options = {"grid": (2,), "in_specs": [_BLOCKS], "out_specs": _BLOCKS, "interpret": True}
    program = pl.pallas_call(kernel, jax.ShapeDtypeStruct(X.shape, X.dtype), **options)
    said = r"`sin` at .*test_kernels\.py:\d+.* is in a kernel.*outside of"
    for jit in (fx.jit, jax.jit, lambda f: f):
        with pytest.raises(NotImplementedError, match=said) as error:
            jit(program)(X)
        assert str(error.value).partition(" See docs")[0].count(". ") == 2
