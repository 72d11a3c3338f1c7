"""JAX's own prints in kernels: what `jax.jit` runs, `fx.jit` runs, in order where the kernel can have one."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from tests.extensions.kernels.test_programs_for_targets import any_device as any_device
from tests.extensions.kernels.test_targets import TARGETS, call, lower

X = jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(core_map|create_tensorcore_mesh) is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]


def _by_jax(x):
    jax.debug.print("JAX {}", x)


def _ours(x):
    fx.print("print {}", x)


def _both(x):
    _by_jax(x)
    _ours(x)
    jax.debug.print("JAX, ordered {}", x, ordered=True)


def _mesh_kernel(show, cores, interpret, way):
    """A kernel over cores, each of which shows three sums."""
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=cores)

    def body(x_ref, o_ref):
        def with_scratch(scratch, semaphore):
            pltpu.async_copy(x_ref, scratch, semaphore).wait()
            scratch[...] = turns(scratch)
            pltpu.async_copy(scratch, o_ref, semaphore).wait()

        def turns(ref):
            def step(i, total):
                show(total)
                return total + ref[0, i]

            return ref[...] + jax.lax.fori_loop(0, 3, step, ref[0, 0])

        if interpret is not True:
            return pl.run_scoped(with_scratch, pltpu.VMEM(X.shape, X.dtype), pltpu.SemaphoreType.DMA)
        o_ref[...] = turns(x_ref)

    if way == "kernel":
        return pl.kernel(body, jax.ShapeDtypeStruct(X.shape, X.dtype), mesh=mesh, interpret=interpret)

    def f(x):
        def inner(refs):
            pl.core_map(mesh, interpret=interpret)(lambda: body(*refs))

        return pl.run_state(inner)((x, jnp.zeros_like(x)))[1]

    return f


def _in_turns(f):
    return lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("interpret", [True, pltpu.InterpretParams()], ids=["by XLA", "by the interpreter"])
@pytest.mark.parametrize("way", ["kernel", "core_map"])
def test_simulated_kernels_over_meshes_have_an_order(way, interpret, cores):
    """Whatever shows a value: each core's in order and the cores one after the other, between what stands around the
    kernel, in a loop; and the results are those of `jax.jit`."""
    f = _in_turns(_mesh_kernel(_both, cores, interpret, way))

    def program(x):
        fx.print("ahead")
        y = f(x)
        fx.print("behind")
        return y

    def calls(jit, f):
        with fx.capture(suppress=True) as records:
            got = np.asarray(jit(f)(X))
            jax.effects_barrier()
            fx.effects_barrier(timeout=120)
        return got, [record.text for record in records]

    got, texts = calls(fx.jit, program)
    expected, _ = calls(jax.jit, f)
    np.testing.assert_array_equal(got, expected)
    totals = [0.0, 0.0, 1.0] if expected.any() else []  # JAX 0.10 simulates a `core_map` on copies
    lines = [f"{name} {x}" for x in totals for name in ("JAX", "print", "JAX, ordered")]
    assert texts[0] == "ahead" and texts[-1] == "behind" and len(texts) == 2 + 2 * 9 * cores
    assert not lines or texts[1 : 1 + 9 * cores] == lines * cores


def _compiled(show):
    def kernel(x_ref, o_ref):
        show(x_ref[...])
        o_ref[...] = x_ref[...] * 2

    return kernel


@pytest.mark.parametrize("size", [512, 8192], ids=["small", "more than the log's room"])
def test_compiled_kernels_with_vectors_are_left_to_jax(size, any_device, caplog):
    """A kernel for TPUs prints vectors on the device, as under `jax.jit`, and the log has a line. A kernel for Triton
    has an order, if its vectors fit into its log."""
    x = jax.ShapeDtypeStruct((size,), jnp.float32)
    for target, (platform, options) in TARGETS.items():
        fmt = "block {}" if target == "tpu" else "block"  # as JAX's compilers take vectors
        f = functools.partial(call, _compiled(functools.partial(pl.debug_print, fmt)), options)
        caplog.clear()
        text = lower(f, platform, x, jit=fx.jit)
        is_left = target == "tpu" or size > 512
        assert ["runs on the device" in record.message for record in caplog.records] == [True] * is_left
        assert is_left or re.search(r"tensor<4x\d+xi32>", text)  # a log has a row for each program


def test_compiled_kernels_with_effects_of_ours_are_refused(any_device):
    """No print of JAX's beside it changes that."""
    x = jax.ShapeDtypeStruct((512,), jnp.float32)
    with pytest.raises(NotImplementedError, match=r"test_jaxs_own\.py:\d+ records an array .*takes scalars"):
        lower(functools.partial(call, _compiled(_both), TARGETS["tpu"][1]), "tpu", x, jit=fx.jit)


@pytest.mark.parametrize("show", [jax.debug.print, pl.debug_print], ids=["jax.debug.print", "pl.debug_print"])
@pytest.mark.parametrize("is_jitted", [False, True])
def test_compiled_kernels_over_meshes_have_jaxs_own_prints(is_jitted, show, caplog):
    """What `jax.export` lowers for a TPU, `fx.export` does."""
    mesh = pltpu.create_tensorcore_mesh("core", num_cores=2)

    def body(x_ref, o_ref):
        core = jax.lax.axis_index("core")
        show("core {}", core)
        pltpu.sync_copy(x_ref.at[pl.ds(core * 8, 8)], o_ref.at[pl.ds(core * 8, 8)])

    x = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    f = pl.kernel(body, x, mesh=mesh)
    device = jax.sharding.AbstractDevice(device_kind="TPU v5p", num_cores=2, platform="tpu")
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)):
        expected = jax.export.export(jax.jit(f), platforms=["tpu"])(x).mlir_module()
        text = fx.export(fx.jit(f) if is_jitted else f, platforms=["tpu"])(x).mlir_module()
    assert expected.count("tpu_custom_call") == text.count("tpu_custom_call") == 1
    assert "runs on the device" in caplog.text
