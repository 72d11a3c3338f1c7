"""Kernels of `plgpu.kernel` with effects, lowered for Mosaic GPU without one."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from effects import _jax
from effects._jax import mesh_kernels
from effects.extensions.kernels.mesh_rules import log_mesh_kernel
from tests.extensions.kernels.test_targets import lower

X = jax.ShapeDtypeStruct((4, 256), jnp.float32)


def call(kernel, x, **options):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(kernel, out_type=shape, grid=(4,), grid_names=("i",), **options)(x)


def logged(f):
    """The kernel in a program with its log as a result. What publishes the log needs the device."""

    def run(*args):
        (eqn,) = _kernels_in(jax.make_jaxpr(f)(*args).jaxpr)
        outs, records = log_mesh_kernel(args, eqn.params)
        return outs, [operands for _, operands in records]

    return run


def _kernels_in(jaxpr):
    found = [eqn for eqn in jaxpr.eqns if eqn.primitive is mesh_kernels.mpmd_map_p]
    for eqn in jaxpr.eqns:
        if eqn.primitive is not mesh_kernels.mpmd_map_p:
            for inner in _jax.jaxprs_in(eqn.params):
                found += _kernels_in(getattr(inner, "jaxpr", inner))
    return found


def k_scalar(x, o):
    i = jax.lax.axis_index("i")
    fx.print("program {}", i)
    o[i] = x[i] * 2


def k_block(x, o):
    i = jax.lax.axis_index("i")
    v = x[i] * 2
    fx.print("{} {}", i, v)
    o[i] = v


def k_loop(x, o):
    i = jax.lax.axis_index("i")

    def body(n, c):
        fx.print("{} {}", i, n)
        return c + 1.0

    total = jax.lax.fori_loop(0, 3, body, 0.0)

    @pl.when(i == 1)
    def _():
        fx.log("one", program=i)

    o[i] = x[i] * total


@pytest.mark.parametrize("kernel", [k_scalar, k_block, k_loop])
def test_lowered_for_mosaic_gpu(kernel):
    """The log lies in the memory that all programs have, a row for each."""
    text = lower(logged(functools.partial(call, kernel)), "cuda", X)
    assert "mosaic_gpu" in text
    assert "tensor<4x1x" in text


def matmul(x, y, size=512, tile=64):
    """Products of tiles by the tensor cores, with one print in each program."""

    def kernel(x, y, o, of_x, of_y, of_o, total, arrived):
        i, j = jax.lax.axis_index("i"), jax.lax.axis_index("j")
        rows, columns = pl.ds(i * tile, tile), pl.ds(j * tile, tile)

        def step(k, _):
            inner = pl.ds(k * tile, tile)
            plgpu.copy_gmem_to_smem(x.at[rows, inner], of_x, arrived)
            plgpu.copy_gmem_to_smem(y.at[inner, columns], of_y, arrived)
            plgpu.barrier_wait(arrived)
            plgpu.wgmma(total, of_x, of_y)
            plgpu.wgmma_wait(0)

        jax.lax.fori_loop(0, size // tile, step, None)
        product = total[...]
        fx.print("{} {}: {}", i, j, jnp.sum(jnp.sum(product, axis=1)))
        of_o[...] = jax.nn.gelu(product).astype(o.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(of_o, o.at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    transforms = plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128)
    tiles = [plgpu.SMEM((tile, tile), x.dtype, transforms=transforms) for _ in range(3)]
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((size, size), x.dtype),
        grid=(size // tile, size // tile),
        grid_names=("i", "j"),
        scratch_types=[*tiles, plgpu.ACC((tile, tile), jnp.float32), plgpu.Barrier(num_arrivals=2)],
    )(x, y)


def test_matmul():
    """512 x 512, with one print in each of its 64 programs."""
    x = jax.ShapeDtypeStruct((512, 512), jnp.float16)
    text = lower(logged(matmul), "cuda", x, x)
    assert "mosaic_gpu" in text
    assert "tensor<64x1x" in text


def test_effects_show_on_the_equation():
    """A kernel whose result is not used is kept for its effects."""

    def f(x):
        call(k_scalar, x)
        return x

    (eqn,) = _kernels_in(jax.make_jaxpr(f)(X).jaxpr)
    assert any(getattr(effect, "name", None) == "print" for effect in eqn.effects)


def test_results_are_refused():
    """Such a kernel cannot wait for the host."""

    def kernel(x, o):
        o[0] = fx.callback(np.sin, jax.ShapeDtypeStruct((256,), "float32"), x[0])

    with pytest.raises(
        NotImplementedError, match=r"callback `sin` at .*test_mesh_kernels\.py:\d+ .*a mesh.*interpret=True"
    ):
        fx.jit(lambda x: call(kernel, x)).lower(X)


def _tell(x, o):
    fx.print("told")
    o[0] = x[0]


def _on_a_tpu(x):
    new = hasattr(pltpu, "TensorCoreMesh")
    mesh = pltpu.TensorCoreMesh(axis_name="i", num_cores=1) if new else pltpu.create_tensorcore_mesh("i", num_cores=1)
    return pl.kernel(_tell, out_type=X, mesh=mesh)(x)


def _simulated_as_others(x):
    return call(_tell, x, interpret=True)


@pytest.mark.parametrize(
    ("f", "said"),
    [
        (_simulated_as_others, r"`_tell` over a mesh .*interpret=plgpu\.InterpretGPUParams\(\)"),
        (_on_a_tpu, r"over a mesh .*not one kernel for GPUs.*`pl\.pallas_call`"),
    ],
)
def test_what_is_refused(f, said):
    """Meshes of other devices, and JAX's simulation that does not know of meshes, at the line of the effect."""
    with pytest.raises((NotImplementedError, fx.MissingTokenRule), match=said) as error:
        fx.jit(f).lower(X)
    assert f"test_mesh_kernels.py:{_tell.__code__.co_firstlineno + 1}" in str(error.value)
    assert str(error.value).count(". ") == 2


@pytest.mark.parametrize(
    ("f", "programs"),
    [
        (lambda y: call(k_scalar, jnp.zeros(X.shape)) + y, 12),
        (lambda y: call(k_scalar, jnp.zeros(X.shape) + y), 12),
        (lambda y: jax.lax.cond(y > 1, lambda y: call(k_scalar, jnp.zeros(X.shape) + y)[0, 0], lambda y: y, y), 4),
    ],
    ids=["no operand differs", "operands differ", "some lanes are there"],
)
def test_lanes_are_an_axis_of_the_mesh(f, programs):
    """Under `vmap` a kernel has programs for every lane. Where only some are there, it is called for one by one."""
    jaxpr = jax.make_jaxpr(lambda y: jax.vmap(f)(y))(jnp.zeros(3)).jaxpr
    (eqn,) = _kernels_in(jaxpr)
    _, sizes = mesh_kernels.mesh_kernel(eqn.params)
    assert math.prod(sizes.values()) == programs
    assert bool(eqn.params["out_avals"][0].shape[0] == 3) == (programs == 12)


def test_kernels_that_jax_has_no_rule_of_vmap_for():
    """`pl.kernel` over a mesh of GPUs is called for every lane, also where no operand differs."""
    mesh = plgpu.Mesh(grid=(4,), grid_names=("i",))

    def f(y):
        return pl.kernel(k_scalar, out_type=X, mesh=mesh)(jnp.zeros(X.shape)) + y

    (loop,) = [eqn for eqn in jax.make_jaxpr(jax.vmap(f))(jnp.zeros(3)).jaxpr.eqns if eqn.primitive is jax.lax.scan_p]
    (eqn,) = _kernels_in(_jax.open_jaxpr(loop.params["jaxpr"]))
    assert loop.params["length"] == 3 and eqn.params["out_avals"][0].shape == X.shape


def _called(program, *args):
    with fx.capture(suppress=True) as records:
        jax.block_until_ready(fx.jit(program)(*args))
        fx.effects_barrier()
    return [(record.text, record.grid) for record in records]


@pytest.mark.skipif(not hasattr(plgpu, "InterpretGPUParams"), reason="JAX simulates no mesh")
@pytest.mark.parametrize("kernel", [k_scalar, k_loop])
def test_simulated(kernel):
    """JAX's interpreter of kernels for GPUs runs them, and records say which program it was; under `vmap` the lane is
    ahead of that, whether the operands differ or not, and where a lane is not there it has no effects."""
    x = jnp.ones(X.shape)

    def once(x):
        return call(kernel, x, interpret=plgpu.InterpretGPUParams())

    alone = _called(once, x)
    assert alone[0] == (alone[0][0], (0,)) and {grid for _, grid in alone} == {(i,) for i in range(4)}
    lanes = [(text, (lane, *grid)) for lane in range(3) for text, grid in alone]
    assert _called(jax.vmap(once), jnp.stack([x, x, x])) == lanes
    assert _called(jax.vmap(lambda y: once(x) + y), jnp.zeros(3)) == lanes

    def masked(x):
        return jax.lax.cond(x[0, 0] > 1, once, lambda x: x, x)

    assert [text for text, _ in _called(jax.vmap(masked), jnp.stack([x, x + 1, x]))] == [text for text, _ in alone]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint32", "int8"])
def test_scalars_of_every_type_are_lowered(dtype):
    """In a loop, too, and as a sum."""

    def kernel(x_ref, o_ref):
        i = jax.lax.axis_index("i")
        total = jnp.sum(x_ref[i])
        fx.print("{} {}", total.astype(dtype), x_ref[i, 0].astype(dtype))
        jax.lax.fori_loop(0, 2, lambda _, x: (fx.print("{}", x.astype(dtype)), x + 1)[1], total)
        o_ref[i] = x_ref[i]

    assert "mosaic_gpu" in lower(logged(functools.partial(call, kernel)), "cuda", X)


def test_checks_of_arrays_are_lowered():
    def kernel(x_ref, o_ref):
        i = jax.lax.axis_index("i")
        fx.check(x_ref[i] > 0, "not positive")
        o_ref[i] = x_ref[i]

    assert "mosaic_gpu" in lower(logged(functools.partial(call, kernel)), "cuda", X)


@pytest.mark.parametrize("kernel", [k_scalar, lambda x, o: None], ids=["with effects", "without"])
def test_bounds_checks_refuse_one_that_is_compiled(kernel):
    """It has no checks, which would otherwise be left out without a word."""
    with (
        fx.config.override(bounds_checks=True),
        pytest.raises(NotImplementedError, match="is compiled for a device, and `fx.config.bounds_checks` is set"),
    ):
        lower(functools.partial(call, kernel), "cuda", X)
