"""Outside of `fx.jit` an effect works wherever `jax.debug.callback` does, and sees what that sees."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import effects as fx
from tests.helpers import run_python

DEVICES = jax.local_device_count()
MESH = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
X = np.arange(4.0 * DEVICES, dtype=np.float32)


def _put(*axes):
    return lambda: jax.device_put(X, jax.NamedSharding(MESH, jax.P(*axes)))


def _in_shard_map(f):
    return jax.shard_map(f, mesh=MESH, in_specs=jax.P("d"), out_specs=jax.P("d"))


JITS = {
    "jax.jit": jax.jit,
    "eqx.filter_jit": eqx.filter_jit,
    "nnx.jit": nnx.jit,
    "pmap": lambda f: lambda x: jax.pmap(f)(np.asarray(x).reshape(DEVICES, -1)),
    "eager": lambda f: f,
}
OPERANDS = {"one device": lambda: jnp.asarray(X), "replicated": _put(), "sharded": _put("d")}
AROUND = {
    "plain": lambda f: f,
    "vmap": jax.vmap,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "shard_map": _in_shard_map,
}


def _jaxs(see):
    return lambda x: (jax.debug.callback(lambda v: see(v), x.sum()), x * 2)[1]


def _ours(act):
    return lambda x: (act(x.sum()), x * 2)[1]


def _values(records):
    return [value for record in records for value in [*record.args, *record.fields.values()] if np.ndim(value) == 0]


ACTS = {
    "print": lambda total: fx.print("{}", total),
    "log": lambda total: fx.log("step", total=total),
    "check": lambda total: fx.check(total != total, "{}", total),
    "callback": None,
    "progress": lambda total: fx.progress(len(X)).update(total.astype(jnp.int32)),
}


def _outcome(program, operand):
    """The results, or the class of the error, of a program that is called with an operand."""
    try:
        return np.asarray(program(operand()))
    except Exception as error:
        return type(error)


@functools.cache
def _with_jaxs(jit, around, operand):
    """The outcome of a program with JAX's callback, and what that has seen."""
    seen = []
    outcome = _outcome(jit(around(_jaxs(lambda v: seen.append(float(v))))), operand)
    jax.effects_barrier()
    return outcome, sorted(seen)


def _compare(jit, around, effect, operand):
    """The same program with JAX's callback and with an effect: results are the same, and so is what was seen."""
    expected, theirs = _with_jaxs(jit, around, operand)
    ours = []
    act = ACTS[effect] or (lambda total: fx.callback(lambda v: ours.append(float(v)), None, total))
    with fx.capture(suppress=True) as records:
        got = _outcome(jit(around(_ours(act))), operand)
        if effect == "check":
            with pytest.raises(fx.CheckError):
                jax.effects_barrier()
        jax.effects_barrier()
    np.testing.assert_array_equal(got, expected)
    if effect == "progress":  # of one bar the slowest is shown
        assert len(records) == len(theirs)
    else:
        assert sorted(ours or map(float, _values(records))) == theirs


@pytest.mark.slow
@pytest.mark.parametrize("effect", ACTS)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("jit", ["jax.jit", "eqx.filter_jit", "nnx.jit"])
def test_works_where_jaxs_own_callback_works(jit, around, effect):
    """On one device and on all, replicated and sharded."""
    for operand in OPERANDS.values():
        _compare(JITS[jit], AROUND[around], effect, operand)


@pytest.mark.parametrize("effect", ACTS)
@pytest.mark.parametrize("around", ["plain", "vmap", "grad"])
@pytest.mark.parametrize("jit", ["pmap", "eager"])
def test_works_without_jit(jit, around, effect):
    """Each device of a `pmap` has its own."""
    _compare(JITS[jit], AROUND[around], effect, OPERANDS["one device"])


def test_results_of_a_callback_over_several_devices():
    """A function whose results the program needs is called once for the whole value."""
    called = []

    def double(v):
        called.append(float(v))
        return np.float32(2 * v)

    @jax.jit
    def f(x):
        return x + fx.callback(double, jax.ShapeDtypeStruct((), jnp.float32), x.sum())

    np.testing.assert_array_equal(f(OPERANDS["sharded"]()), X + 2 * X.sum())
    assert called == [X.sum()]


@pytest.mark.parametrize("results", [False, True])
def test_programs_that_are_dropped_while_they_run(results):
    """What runs of a program that nothing keeps any more has its effects."""
    seen = []

    def call(x):
        shape = jax.ShapeDtypeStruct((), jnp.float32) if results else None
        fx.callback(lambda v: (seen.append(float(v)), v)[1 if results else 0], shape, x.sum())
        return x * 2

    for _ in range(20):
        jax.block_until_ready(jax.jit(lambda x: call(x))(OPERANDS["sharded"]()))
        jax.effects_barrier()
    assert seen == [X.sum()] * 20


SAID = """
import jax, jax.numpy as jnp
import effects as fx

x = jax.device_put(jnp.arange(8), jax.NamedSharding(jax.make_mesh((8,), "d"), jax.P("d")))
for f in [lambda x: fx.print("a {}", x.sum()), lambda x: fx.print("b {}", x.sum())]:
    jax.jit(f)(x)
    jax.effects_barrier()
"""


@pytest.mark.slow
def test_first_effect_without_an_order_is_said_once():
    """The log says once how to have an order."""
    done = run_python(SAID, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=8"})
    assert done.stdout == "a 28\nb 28\n"
    assert done.stderr.count("Put `fx.jit` around the program") == 1, done.stderr
