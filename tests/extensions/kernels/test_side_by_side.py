"""Kernels that JAX's interpreter for TPUs runs in threads, or whose grid it shuffles: their effects come in the order
of the grid all the same, in the place of the kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx

X = jnp.arange(6 * 8 * 128, dtype=jnp.float32).reshape(48, 128)
GRIDS = {(6,): lambda i: (i, 0), (3, 2): lambda i, j: (2 * i + j, 0)}


def _kernel(x_ref, o_ref):
    step = pl.program_id(0)
    fx.print("{grid} begins with {}", x_ref[0, 0])

    def turn(i, total):
        fx.log("turn", i=i, total=total)
        return total + x_ref[i, 1]

    total = jax.lax.fori_loop(0, step % 3, turn, jnp.float32(0))

    @pl.when(step % 2 == 1)
    def _():
        fx.callback(lambda i, total: None, None, step, total)

    fx.check(total >= 0, "total {}", total)
    o_ref[...] = x_ref[...] + total


def _program(grid, **options):
    block = pl.BlockSpec((8, 128), GRIDS[grid])

    def f(x):
        fx.print("ahead")
        y = pl.pallas_call(_kernel, X, grid=grid, in_specs=[block], out_specs=block, **options)(x)
        fx.print("behind")
        return y

    return f


def _seen(f, *args):
    with fx.capture(suppress=True) as records:
        outs = jax.tree.map(np.asarray, f(*args))
        fx.effects_barrier(timeout=120)
    return outs, [(record.effect, record.text, record.grid) for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("grid", GRIDS)
def test_order_of_the_grid(grid, jit):
    """A kernel has the records of a loop over its grid, between the records around it, whatever the number of cores and
    whichever axes are parallel."""
    expected = _seen(jit(_program(grid, interpret=True)), X)
    assert expected[1][0][1] == "ahead" and expected[1][-1][1] == "behind" and len(expected[1]) > 12
    for cores, first, seed in ((1, None, 0), (2, None, 0), (1, "parallel", 5), (2, "parallel", 0), (3, "parallel", 3)):
        semantics = None if first is None else (first, *("arbitrary",) * (len(grid) - 1))
        params = pltpu.InterpretParams(num_cores_or_threads=cores, random_seed=seed)
        options = {} if semantics is None else {"compiler_params": pltpu.CompilerParams(dimension_semantics=semantics)}
        outs, records = _seen(jit(_program(grid, interpret=params, **options)), X)
        np.testing.assert_array_equal(outs, expected[0])
        assert records == expected[1], (cores, semantics, seed)


def test_what_waits_is_refused_by_name():
    """A callback with a result has no order there, and is refused where the kernel is traced."""

    def ask(x):
        raise AssertionError(x)

    def kernel(x_ref, o_ref):
        o_ref[0, 0] = fx.callback(ask, jax.ShapeDtypeStruct((), jnp.float32), x_ref[0, 0])

    for options in (
        {"interpret": pltpu.InterpretParams(num_cores_or_threads=2)},
        {
            "interpret": pltpu.InterpretParams(),
            "compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",)),
        },
    ):
        call = pl.pallas_call(kernel, X, grid=(2,), **options)
        with pytest.raises(NotImplementedError, match="`.*ask` at .*several cores or a parallel axis.*interpret=True"):
            fx.jit(call)(X)


def test_emit_pipeline():
    """The body of a pipeline is run as often as its grid says, and its effects come in that order, each in its place in
    the kernel."""
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def kernel(x_ref, o_ref):
        def body(x, o):
            fx.print("step {} begins with {}", pl.program_id(0), x[0, 0])
            o[...] = x[...] * 2

        fx.print("ahead of the pipeline")
        pltpu.emit_pipeline(body, grid=(3,), in_specs=[block], out_specs=[block])(x_ref, o_ref)
        fx.print("behind it")

    whole = pl.BlockSpec(memory_space=pl.ANY)
    x = X[:24]
    device = jax.sharding.AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    tpu = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    expected = ["ahead of the pipeline", *(f"step {i} begins with {1024.0 * i}" for i in range(3)), "behind it", "end"]
    for cores in (1, 2):
        call = pl.pallas_call(
            kernel, x, in_specs=[whole], out_specs=whole, interpret=pltpu.InterpretParams(num_cores_or_threads=cores)
        )

        def f(x, call=call):
            with jax.sharding.use_abstract_mesh(tpu):
                y = call(x)
            fx.print("end")
            return y

        outs, records = _seen(fx.jit(f), x)
        np.testing.assert_array_equal(outs, x * 2)
        assert [text for _, text, _ in records] == expected


def test_barrier_semaphores():
    """Devices that meet at a barrier's semaphore have their effects ahead of it and behind it."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def kernel(x_ref, o_ref):
        me = jax.lax.axis_index("x")
        fx.print("{} comes", me)
        semaphore = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(semaphore, device_id=(1 - me,))
        pl.semaphore_wait(semaphore, 1)
        fx.print("{} goes on", me)
        o_ref[...] = x_ref[...]

    for parallel in (False, True):
        options = {"compiler_params": pltpu.CompilerParams(collective_id=0)}
        if parallel:
            params = pltpu.CompilerParams(collective_id=0, dimension_semantics=("parallel",))
            options = {"compiler_params": params, "grid": (1,)}
        call = pl.pallas_call(kernel, X[:8], interpret=pltpu.InterpretParams(), **options)
        P = jax.sharding.PartitionSpec
        f = fx.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        outs, records = _seen(f, X[:16])
        np.testing.assert_array_equal(outs, X[:16])
        # A log is one effect of its device.
        expected = [("0 comes", "0 goes on"), ("1 comes", "1 goes on")]
        expected = sum(expected if parallel else zip(*expected, strict=True), ())
        assert [text for _, text, _ in records] == list(expected)


def test_kernels_after_one_that_fails():
    """Whichever program of the grid a kernel fails in, the next kernel of the process runs as if it had not."""

    def kernel(x_ref, o_ref):
        o_ref[...] = fx.error_if(x_ref[...], x_ref[0, 0] < 0, "below")

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    options = {"grid": (3,), "in_specs": [block], "out_specs": block, "interpret": pltpu.InterpretParams()}
    f = fx.jit(pl.pallas_call(kernel, X[:24], **options))
    for failing in (0, 8, 16):
        with pytest.raises(fx.CheckError, match="below"):
            f(X[:24].at[failing].set(-1))
        np.testing.assert_array_equal(f(X[:24]), X[:24])
    fx.effects_barrier()
