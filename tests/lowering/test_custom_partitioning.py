"""Functions of `custom_partitioning` have no effects: they are refused while tracing for a program."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning

import effects as fx

X = np.arange(8.0, dtype=np.float32)


def partitioned(function):
    """The function, of which each shard does the same."""

    def partition(mesh, args, result):
        return mesh, function, args[0].sharding, (args[0].sharding,)

    made = custom_partitioning(function)
    made.def_partition(
        partition, infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding, sharding_rule="i -> i"
    )
    return made


def sharded(devices):
    axes = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("d",), axis_types=axes, devices=jax.devices()[:devices])
    return jax.device_put(X, jax.NamedSharding(mesh, jax.P("d")))


def shows(x):
    fx.print("first {}", x[0])
    return x * 2


def shows_in_kernel(x):
    def kernel(x_ref, o_ref):
        fx.print("first {}", x_ref[0])
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def calls(x):
    return fx.callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


AROUND = {
    "nothing": lambda f: f,
    "a loop": lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, length=2)[0],
    "a branch": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: x, x),
    "vmap": lambda f: lambda x: jax.vmap(lambda i: f(x) + i)(jnp.arange(3)),
    "unused results": lambda f: lambda x: (f(x), x)[1],
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("function", [shows, shows_in_kernel, calls], ids=lambda f: f.__name__)
def test_effects_are_refused(function, jit, devices, around):
    """The error names the effects, the function and its line, and nothing has happened."""
    x, effect = sharded(devices), "callback" if function is calls else "print"
    with fx.capture() as records, pytest.raises(fx.MissingTokenRule, match=f"`{effect}`.*{function.__name__} at .*py:"):
        jit(AROUND[around](partitioned(function)))(x)
    assert records == []


@pytest.mark.parametrize("function", [shows, shows_in_kernel, calls], ids=lambda f: f.__name__)
def test_effects_happen_where_the_function_runs_by_itself(function):
    """JAX runs it as any function outside of jit."""
    with fx.capture() as records:
        partitioned(function)(jnp.asarray(X))
    assert [record.effect for record in records] == ["callback" if function is calls else "print"]


@pytest.mark.parametrize("setting", ["program_order", "jax"])
def test_callbacks_of_jax_are_left_to_jax(setting, capfd):
    """Callbacks happen on one device, beside effects of ours around the function."""

    def function(x):
        jax.debug.print("first {}", x[0])
        return x * 2

    def program(x):
        fx.print("before")
        return partitioned(function)(x)

    with fx.config.override(jax_effects=setting):
        np.testing.assert_array_equal(fx.jit(program)(sharded(1)), X * 2)
        fx.effects_barrier()
    assert sorted(capfd.readouterr().out.splitlines()) == ["before", "first 0.0"]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_functions_without_effects_are_as_they_were(jit, devices):
    """Functions without effects are partitioned by JAX, under `fx.jit` too, with effects around them."""
    f = partitioned(lambda x: x * 2)
    with fx.capture() as records:
        np.testing.assert_array_equal(jit(lambda x: (fx.print("{}", x[0]), f(x))[1])(sharded(devices)), X * 2)
        with contextlib.suppress(NotImplementedError):  # JAX has no rule for lanes
            jit(jax.vmap(f))(X[None])
    assert [record.text for record in records] == ["0.0"]
