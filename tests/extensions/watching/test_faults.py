"""`fx.watch` finds the planted fault of each program, and computes what the program does without."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from effects import _jax
from effects._jax import pallas
from tests.extensions.watching import faults
from tests.extensions.watching.faults import FAULTS

JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}


def _raised(program, args):
    """What a program raises for bad values."""
    with pytest.raises(fx.CheckError) as caught:
        jax.block_until_ready(program(*args))
        fx.effects_barrier()
    return caught.value.failures


def _same(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    """The error says the operation, the line, and in which iteration, lane and device, and there is only one."""
    fault = FAULTS[name]
    [error] = _raised(fx.jit(fault.program), fault.args)
    assert isinstance(error, fx.NonFinite)
    assert error.where == f"{faults.__file__}:{fault.line}", str(error)
    for each in ("operation", "iteration", "lane", "index", "grid", "backward"):
        assert getattr(error, each) == getattr(fault, each), (each, str(error))
    assert fault.device is None or error.device == fault.device
    assert "went on" in str(error) and error.count >= 1 and (error.operands or not fault.args)


@pytest.fixture
def kernels_are_compiled(monkeypatch):
    """CPUs compile kernels: they lower a kernel as they lower its simulation. JAX does this for no CPU."""
    mlir, kernel_p = _jax.mlir, pallas.pallas_call_p
    lower = mlir._lowerings[kernel_p]
    lower = getattr(lower, "rule", lower)
    monkeypatch.setitem(mlir._platform_specific_lowerings["cpu"], kernel_p, None)  # taken back with the test's end
    mlir.register_lowering(kernel_p, lambda *args, **kw: lower(*args, **kw | {"interpret": True}), platform="cpu")


def _log_of_rows(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...] * 2)  # here

    row = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=len(x), in_specs=[row], out_specs=row)(x)


def _log_of_a_copy(x):
    def kernel(x_ref, o_ref, scratch):
        pltpu.sync_copy(x_ref, scratch)
        o_ref[...] = jnp.log(scratch[...])

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)])(x)  # here


@pytest.mark.parametrize(
    ("f", "operation", "grid", "index"),
    [(_log_of_rows, "log", (2,), (0, 1)), (_log_of_a_copy, "pallas_call", (), (2, 1))],
    ids=["simulated", "one operation"],
)
def test_fault_in_a_compiled_kernel(f, operation, grid, index, kernels_are_compiled):
    """What a device has compiled is simulated where it has made a bad value, unless it copies or waits."""
    [error] = _raised(fx.jit(fx.watch(f)), [faults.ROWS])
    source, first = inspect.getsourcelines(f)
    [at] = [i for i, text in enumerate(source) if text.rstrip().endswith("# here")]
    assert (error.operation, error.where) == (operation, f"{__file__}:{first + at}"), str(error)
    assert (error.grid, error.index) == (grid, index)
