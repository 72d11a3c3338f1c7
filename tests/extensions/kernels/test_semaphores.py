"""Kernels with semaphores, which JAX's interpreter of kernels for TPUs runs: what is found of their mistakes.

Each runs in a process of its own, since one that has failed or hangs leaves the interpreter as it is.
"""

from __future__ import annotations

import pytest

from tests.helpers import run_python

_KERNEL = """
import os
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import effects as fx

def kernel(x_ref, o_ref, scratch, semaphore):
    {effect}
    copy = pltpu.make_async_copy(x_ref, scratch, semaphore)
    copy.start()  # line 11
    {waits}  # line 12
    back = pltpu.make_async_copy(scratch, o_ref, semaphore)
    back.start()  # line 14
    back.wait()

x, whole = jnp.ones((8, 128)), pl.BlockSpec(memory_space=pl.ANY)
scratch = [pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA]
call = pl.pallas_call(kernel, x, in_specs=[whole], out_specs=whole, scratch_shapes=scratch,
                      interpret=pltpu.InterpretParams())
"""


def _run(waits, then, effect="", **env):
    code = _KERNEL.format(waits=waits, effect=effect) + then
    done = run_python(f"exec(compile({code!r}, 'ring.py', 'exec'), {{'__name__': '__main__'}})", env=env)
    return done.stdout + done.stderr


_CALL = """
y = fx.jit(call)(x)
fx.effects_barrier()
print(bool((y == x).all()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["pass", "copy.wait()"])
def test_missing_wait_is_found(waits):
    """With `bounds_checks` JAX reports the access and the copy, each with its line, and nothing if the kernel waits."""
    said = _run(waits, _CALL, EFFECTS_BOUNDS_CHECKS="1")
    assert ("RACE DETECTED" in said) == (waits == "pass")
    assert all((f"ring.py:{line}" in said) == (waits == "pass") for line in (11, 14))
    assert "True" in said or waits == "pass"


_TO_ITSELF = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import effects as fx

def kernel(x_ref, o_ref, sent, received):
    me = jax.lax.axis_index("x")
    target = me  # and not `1 - me`
    fx.check(target != me, "device {} sends to itself", me)  # line 10
    ids = {"device_id": (target,), "device_id_type": pl.DeviceIdType.MESH}
    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, **ids)
    copy.start()
    copy.wait()

x, whole = jnp.arange(16 * 128.0).reshape(16, 128), pl.BlockSpec(memory_space=pl.ANY)
call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((8, 128), x.dtype), in_specs=[whole], out_specs=whole,
                      scratch_shapes=[pltpu.SemaphoreType.DMA] * 2, interpret=pltpu.InterpretParams())
mesh, P = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), jax.sharding.PartitionSpec
y = fx.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)
try:
    fx.effects_barrier()
except fx.CheckError as error:
    print(error)
print(bool((y == x).all()), flush=True)
"""


@pytest.mark.slow
def test_copy_to_itself_is_made():
    """It is no mistake to JAX: the device has its own values. A check in the kernel says it, with its line."""
    code = f"exec(compile({_TO_ITSELF!r}, 'ring.py', 'exec'), {{'__name__': '__main__'}})"
    flags = "--xla_force_host_platform_device_count=2"
    done = run_python(code, env={"EFFECTS_BOUNDS_CHECKS": "1", "XLA_FLAGS": flags})
    assert "device 0 sends to itself (ring.py:10, in `kernel`, device 0)" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "True" and "RACE DETECTED" not in done.stdout + done.stderr


_ON_TWO_DEVICES = """
def f(x):
    return call(x)

mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
P = jax.sharding.PartitionSpec
fx.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))(jnp.ones((16, 128)))
while True:
    try:
        fx.effects_barrier(timeout=0.1)
    except fx.BarrierTimeout as error:
        if "semaphore" in str(error):
            print(error, flush=True)
            os._exit(0)
"""


@pytest.mark.slow
def test_wait_that_nothing_signals():
    """It hangs, and a barrier whose time has run out names the program, and says where the kernel waits."""
    flags = "--xla_force_host_platform_device_count=2"
    said = _run("copy.wait(), copy.wait()", _ON_TWO_DEVICES, XLA_FLAGS=flags)
    assert "these have not ended: `f` (thread 1, dispatch 0" in said
    assert "- a simulated kernel, which waits for a semaphore at ring.py:12 (kernel)" in said
