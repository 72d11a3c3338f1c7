"""`fx.check` in kernels, and the checks of every index that `bounds_checks` adds to them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton

import effects as fx

pytestmark = pytest.mark.slow

X = jnp.arange(8, dtype=jnp.int32)
PAIRS = pl.BlockSpec((2,), lambda i: (i,))


@pytest.fixture(autouse=True)
def checked():
    with fx.config.override(bounds_checks=True):
        yield


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _failures(program, *args):
    """The messages of all checks that failed, with the grid index: (message, grid)."""
    try:
        jax.block_until_ready(program(*args))
        fx.effects_barrier()
    except fx.CheckError as error:
        failed = error.failures
    else:
        failed = []
    assert all(error.where.startswith(__file__) for error in failed)
    return [(error.message, error.grid) for error in failed]


def _call(kernel, shape, grid, **options):
    return fx.jit(pl.pallas_call(kernel, out_shape=shape, grid=grid, interpret=True, **options))


def test_check_in_a_kernel():
    """A check that fails says which program of the grid it was; the effects around it are as without."""

    def kernel(x_ref, o_ref):
        fx.check(x_ref[0] < 4, "{} is large", x_ref[0])
        o_ref[...] = x_ref[...]

    program = _call(kernel, _shape(8), (4,), in_specs=[PAIRS], out_specs=PAIRS)
    assert _failures(program, X) == [("4 is large", (2,)), ("6 is large", (3,))]
    with pytest.raises(fx.CheckError, match=r"5 is large \(.*, grid index 3\)"):
        program(X - 1)
        fx.effects_barrier()


def test_index_in_a_loop():
    def kernel(x_ref, o_ref):
        def body(i, _):
            o_ref[i + pl.program_id(0)] = x_ref[0]

        jax.lax.fori_loop(0, 2, body, None)

    program = _call(kernel, _shape(8), (2,), in_specs=[PAIRS], out_specs=PAIRS)
    assert _failures(program, X) == [("out of bounds: write at 2 along axis 0, which goes from 0 to 1", (1,))]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_slices(jit):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(3 * pl.program_id(0), 3)].sum()[None]

    call = pl.pallas_call(kernel, out_shape=_shape(1), grid=(3,), interpret=True)
    message = "out of bounds: read at 6 to 8 along axis 0, which goes from 0 to 7"
    assert _failures(jit(call), X) == [(message, (2,))]
    assert _failures(jit(jax.vmap(call)), jnp.stack([X, X])) == [(message, (0, 2)), (message, (1, 2))]


def test_index_arrays():
    """Arrays of indices beside slices, and negative ones, which JAX takes for what they are."""

    def kernel(x_ref, o_ref):
        rows = jnp.arange(2) - pl.program_id(0)
        o_ref[...] = x_ref[rows, pl.ds(pl.program_id(0), 2)]

    assert _failures(_call(kernel, _shape(2, 2), (3,)), X.reshape(2, 4)) == [
        ("out of bounds: read at -1 to 0 along axis 0, which goes from 0 to 1", (1,)),
        ("out of bounds: read at -2 to -1 along axis 0, which goes from 0 to 1", (2,)),
    ]


@pytest.mark.parametrize(("loaded", "failing"), [(6, 0), (7, 1)])
def test_masked_accesses(loaded, failing):
    """What a mask leaves out is not accessed."""

    def kernel(x_ref, o_ref):
        at = 4 * pl.program_id(0) + jnp.arange(4)
        triton.store(o_ref.at[at], triton.load(x_ref.at[at], mask=at < loaded, other=0), mask=at < 6)

    failures = _failures(_call(kernel, _shape(6), (2,)), X[:6])
    assert failures == [("out of bounds: read at 4 to 6 along axis 0, which goes from 0 to 5", (1,))] * failing


def test_blocks():
    """A block that begins outside of its array is reported at its index map; the padding of the last one is not."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    shifted = pl.BlockSpec((2,), lambda i: (i + 1,))
    program = _call(kernel, _shape(8), (4,), in_specs=[shifted], out_specs=PAIRS)
    [(message, grid)] = _failures(program, X)
    assert "start of the block of" in message and message.endswith("at 8 along axis 0, which goes from 0 to 7")
    assert grid == (3,)
    assert _failures(_call(kernel, _shape(7), (4,), in_specs=[PAIRS], out_specs=PAIRS), X[:7]) == []


@pytest.mark.parametrize(
    ("step", "padding", "failing"), [(4, (0, 0), 0), (6, (0, 0), 1), (6, (1, 1), 0), (7, (1, 1), 1)]
)
def test_blocks_at_elements(step, padding, failing):
    """Such a block lies inside of its array, with its padding, to its end."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    windows = pl.BlockSpec((pl.Element(4, padding),), lambda i: (i * step,))
    out = pl.BlockSpec((4,), lambda i: (i,))
    found = _failures(_call(kernel, _shape(8), (2,), in_specs=[windows], out_specs=out), X)
    last = 4 + sum(padding)
    assert [message.partition(" at ")[2] for message, _ in found] == [
        f"{step} along axis 0, which goes from 0 to {last}"
    ] * failing


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_setting_changes(jit):
    """A function that was called before has checks from the change on, and none after the next one."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(4 * pl.program_id(0), 8)]

    program = jit(pl.pallas_call(kernel, out_shape=_shape(8), grid=(2,), interpret=True))
    for is_set in (False, True, False):
        with fx.config.override(bounds_checks=is_set):
            assert len(_failures(program, X)) == is_set


def _read_at_a_number(x, number):
    """A block of two elements, and to each the one of the block that has this number."""

    def kernel(x_ref, number_ref, o_ref):
        o_ref[...] = jnp.sin(x_ref[...]) + x_ref[number_ref[0].astype(jnp.int32)]

    one = pl.BlockSpec((1,), lambda i: (0,))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {"in_specs": [PAIRS, one], "out_specs": PAIRS, "interpret": True}
    return pl.pallas_call(kernel, shape, grid=(2,), **options)(x, number.reshape(1))


def _jvp(f):
    # JAX's rule for kernels takes every operand to have a tangent.
    return lambda *args: jax.jvp(f, args, tuple(map(jnp.ones_like, args)))


def test_lanes():
    """A kernel that `vmap` has changed has the results of one without checks, and is checked in its lane."""
    xs, inside, outside = jnp.arange(8.0).reshape(2, 4), jnp.array([0.0, 1.0]), jnp.array([0.0, 5.0])
    program = fx.jit(jax.vmap(_read_at_a_number))
    checked = program(xs, inside)
    fx.effects_barrier()
    with fx.config.override(bounds_checks=False):
        np.testing.assert_array_equal(checked, fx.jit(jax.vmap(_read_at_a_number))(xs, inside))
    expected = ("out of bounds: read at 5 along axis 0, which goes from 0 to 1", (1, 0))
    assert _failures(program, xs, outside)[0] == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_lanes_that_take_a_branch(depth):
    """A kernel is checked where the lane takes the branch, however many branches there are, and nowhere else."""

    def program(xs, numbers, *taken):
        def lane(x, number, *taken):
            def run():
                return _read_at_a_number(x, number)

            for each in taken:
                run = functools.partial(jax.lax.cond, each, run, lambda: x)
            return run()

        return jax.vmap(lane)(xs, numbers, *taken)

    program, xs = fx.jit(program), jnp.arange(16.0).reshape(4, 4)
    inside, outside = jnp.array([0.0, 1.0, 0.0, 1.0]), jnp.array([5.0, 5.0, 5.0, 1.0])
    taken = [jnp.array([False, True, False, True]), jnp.array([False, False, True, True])][:depth]
    assert _failures(program, xs, inside, *taken) == []
    failed = {grid[0] for _, grid in _failures(program, xs, outside, *taken)}
    assert failed == ({1} if depth == 1 else set())
    assert {grid[0] for _, grid in _failures(program, xs, outside + 4, *taken)} == ({1, 3} if depth == 1 else {3})


def test_derivative_is_refused():
    """JAX has no derivative of a kernel with checks."""
    program = fx.jit(_jvp(_read_at_a_number))
    with pytest.raises(fx.NotDifferentiable, match="The kernel `kernel at .*` is differentiated"):
        program(jnp.arange(4.0), jnp.float32(0))
    with fx.config.override(bounds_checks=False):
        program(jnp.arange(4.0), jnp.float32(0))


def test_asynchronous_copies():
    """Both ends of a copy of TPUs', which JAX simulates too."""

    def copying(source, target):
        def kernel(x_ref, o_ref, semaphore):
            copy = pltpu.make_async_copy(x_ref.at[source()], o_ref.at[target()], semaphore)
            copy.start()
            copy.wait()

        whole = pl.BlockSpec(memory_space=pl.ANY)
        options = {"in_specs": [whole], "out_specs": whole, "scratch_shapes": [pltpu.SemaphoreType.DMA]}
        return _call(kernel, _shape(8), (4,), **options)

    def pair():
        return pl.ds(2 * pl.program_id(0), 2)

    def three():
        return pl.ds(2 * pl.program_id(0), 3)

    message = "out of bounds: {} at 6 to 8 along axis 0, which goes from 0 to 7"
    assert _failures(copying(pair, pair), X) == []
    failed = {*_failures(copying(three, three), X)}
    assert failed == {(message.format("read"), (3,)), (message.format("write"), (3,))}


def test_reads_of_index_maps():
    def kernel(_, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    first = pl.BlockSpec((2,), lambda i, starts: (starts[i],))
    each = pl.BlockSpec((2,), lambda i, _: (i,))
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(4,), in_specs=[first], out_specs=each)
    program = pl.pallas_call(kernel, _shape(8), grid_spec=spec, interpret=True)
    assert _failures(program, jnp.zeros(4, jnp.int32), X) == []
    expected = ("out of bounds: read at 3 along axis 0, which goes from 0 to 2", (3,))
    assert _failures(program, jnp.zeros(3, jnp.int32), X) == [expected]


def test_slice_of_no_elements():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + x_ref[pl.ds(pl.program_id(0), 0)].sum()

    program = _call(kernel, _shape(8), (4,), in_specs=[PAIRS], out_specs=PAIRS)
    assert _failures(program, X) == []
