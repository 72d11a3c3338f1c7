"""Each change of JAX is needed: without it, effects happen too often, too seldom, or unseen."""

from __future__ import annotations

import contextlib
import threading

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning

import effects as fx
from effects import _jax
from effects._jax import patches


def _branch(x):
    jax.lax.cond(x > 1, lambda: fx.print("{}", x), lambda: None)


def _branch_of_jax(x):
    jax.lax.cond(x > 1, lambda: jax.debug.print("{}", x), lambda: None)


def _scan(x):
    def body(carry, _):
        fx.print("an iteration")
        return jnp.sin(carry) * x, None

    return jax.lax.scan(body, x, length=3)[0]


def _while(x):
    def body(carry):
        fx.print("an iteration")
        return carry * 2

    return jax.lax.while_loop(lambda carry: carry < x + 8, body, x)


def _run_state():
    def body(ref):
        fx.print("a state")
        ref[...] = ref[...] + 1

    from jax.experimental import pallas  # takes a second to import

    return pallas.run_state(body)(1.0)


def _custom_vmap():
    @jax.custom_batching.custom_vmap
    def twice(x):
        fx.print("a call")
        return 2 * x

    twice.def_vmap(lambda axis_size, in_batched, x: (twice(x), in_batched[0]))
    return twice(1.0)


def _records(function, x):
    """How many records a program gives."""
    with fx.capture() as records:
        fx.jit(lambda x: function(x))(x)
        fx.effects_barrier()
    return len(records)


def _failures_of_barrier():
    """How many failures `jax.effects_barrier` raises of one that there is."""

    def fail():
        raise ValueError("as asked")

    fx.jit(lambda: fx.callback(fail))()
    try:
        jax.effects_barrier()
    except fx.EffectError:
        return 1
    with pytest.raises(fx.EffectError):
        fx.effects_barrier()
    return 0


def _kernel(x):
    def kernel(x_ref, o_ref):
        fx.print("a kernel")
        o_ref[...] = x_ref[...]

    return _call(kernel, x)


def _kernel_with_loop(x):
    def kernel(x_ref, o_ref):
        jax.lax.fori_loop(0, 2, lambda i, _: fx.print("{}", pl.program_id(0) + i), None)
        o_ref[...] = x_ref[...]

    return _call(kernel, x)


def _call(kernel, x):
    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(2,), interpret=True)(x)


def _records_of_kernel(function, x):
    """How many records a program gives; none if JAX refuses it."""
    try:
        return _records(function, x)
    except Exception:
        return 0


def _indices_outside():
    """How many indices outside of a block a kernel says that it has read."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + x_ref[3 * pl.program_id(0)]

    with fx.config.override(bounds_checks=True), fx.capture() as records:
        fx.jit(lambda x: _call(kernel, x))(jnp.ones(2))
        with contextlib.suppress(fx.CheckError):
            fx.effects_barrier()
    return len(records)


def _breakpoint_waits():
    """Whether a breakpoint of a program's returns something that it waits for."""
    return "fx.breakpoint" in fx.jit(lambda x: jax.debug.breakpoint()).lower(1).as_text()


def _partitioned(x):
    def show(x):
        fx.print("a shard", ordered=False)
        return x

    function = custom_partitioning(show)
    function.def_partition(lambda mesh, args, result: (mesh, show, result.sharding, (args[0].sharding,)))
    return function(x)


def _is_refused():
    """True if a function of `custom_partitioning` with effects is refused."""
    try:
        jax.make_jaxpr(lambda x: _partitioned(x))(jnp.ones(2))
    except fx.MissingTokenRule:
        return True
    return False


def _tokens_of_log():
    """The number of tokens of the records of a kernel that writes its effects to a log."""
    with _jax.with_kernel_options(logs_simulated=True), fx.capture() as records:
        jax.jit(lambda x: _kernel(x))(jnp.ones(2))
        fx.effects_barrier()
    return len({record.token for record in records})


# Functions of their own at each call, so that nothing comes from caches of JAX.
def _says_what_to_write():
    """Whether the error of an f-string with a specification names `fx.print`."""
    try:
        fx.jit(lambda x: fx.print(f"{x:.2f}"))(1.0)
    except Exception as error:
        return "fx.print" in str(error)


def _kernels_after_one_that_fails():
    """The number of kernels, of one, that run after one that has failed."""
    from jax.experimental.pallas import tpu

    def kernel(x, o):
        o[...] = x[...] + fx.callback(lambda x: 1 // x, jax.ShapeDtypeStruct((), jnp.int32), x[0])

    block = pl.BlockSpec((1,), lambda i: (i,))
    options = {"grid": (3,), "in_specs": [block], "out_specs": block, "interpret": tpu.InterpretParams()}
    f = fx.jit(pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((3,), jnp.int32), **options))
    ran = 0
    for x in [1, 1, 0], [2, 1, 1]:
        with contextlib.suppress(fx.EffectError, jax.errors.JaxRuntimeError):
            jax.block_until_ready(f(jnp.array(x)))
            ran += 1
        with contextlib.suppress(fx.EffectError):
            fx.effects_barrier()
    tpu.reset_tpu_interpret_mode_state()
    return ran


def _calls_without_arguments():
    """The number of calls in a program that calls a function without arguments twice."""
    function = jax.jit(lambda: fx.print("{}", jnp.float32(7)))
    return jax.jit(lambda: (function(), function())).lower().as_text().count(" call @")


def _outside():
    """What came first: the program's callback, or one outside of traces, for which the former waits a while."""
    gate, came = threading.Event(), []
    fx.jit(lambda: fx.callback(lambda: (gate.wait(3) and None) or came.append("program"), None))()
    jax.debug.callback(lambda: came.append("outside") or gate.set())
    fx.effects_barrier()
    return came


NEEDED = {
    "text of traced values": (_says_what_to_write, True, False),
    "JAX's own callbacks": (lambda: _records(jax.vmap(_branch_of_jax), jnp.arange(3)), 1, 3),
    "JAX's callbacks outside of traces": (_outside, ["program", "outside"], ["outside", "program"]),
    "jax.debug.breakpoint": (_breakpoint_waits, True, False),
    "vmap of cond": (lambda: _records(jax.vmap(_branch), jnp.arange(3)), 1, 3),
    "vmap of while": (lambda: _records(jax.vmap(_while), jnp.array([1.0, 8.0, 8.0])), 6, 12),
    "vmap of custom_vmap": (lambda: _records(jax.vmap(lambda x: x + _custom_vmap()), jnp.arange(3.0)), 3, 1),
    "vmap of run_state": (lambda: _records(jax.vmap(lambda x: x + _run_state()), jnp.arange(3.0)), 3, 1),
    "hoisting from scans": (lambda: _records(jax.grad(_scan), 1.0), 3, 1),
    "scan in remat": (lambda: _records(jax.grad(jax.checkpoint(lambda x: _scan(x))), 1.0), 3, 1),
    "linearized while": (lambda: _records(lambda x: jax.linearize(_while, x)[1](x), 1.0), 4, 8),
    "while in remat": (
        lambda: _records(lambda x: jax.linearize(jax.checkpoint(lambda x: _while(x)), x)[1](x), 1.0),
        4,
        8,
    ),
    "effects of kernels": (lambda: _records_of_kernel(lambda x: (_kernel(x), x)[1], jnp.ones(2)), 2, 0),
    "bounds of kernels": (_indices_outside, 1, 0),
    "vmap of kernels": (lambda: _records(jax.vmap(lambda y: _kernel(jnp.ones(2)) + y), jnp.ones((3, 2))), 6, 2),
    "derivatives of kernels": (
        lambda: _records_of_kernel(lambda x: jax.jvp(jax.vmap(_kernel), (x,), (x,))[1], jnp.ones((3, 2))),
        6,
        0,
    ),
    "grids of simulated kernels": (lambda: _records_of_kernel(_kernel_with_loop, jnp.ones(2)), 4, 0),
    "state of simulated kernels": (_kernels_after_one_that_fails, 1, 0),
    "effects of custom_partitioning": (_is_refused, True, False),
    "lowering of compiled kernels": (_tokens_of_log, 1, 2),
    "calls without arguments": (_calls_without_arguments, 0 if _jax.inlined_late else 2, 2),
    "effects_barrier": (_failures_of_barrier, 1, 0),
}
"""By row: what a program gives, with it and without it."""


@pytest.mark.parametrize("name", NEEDED)
def test_row_is_needed(name):
    """With a row, effects happen as often as in Python. Without it they do not, so that no row outlives its reason."""
    program, with_row, without_row = NEEDED[name]
    assert program() == with_row
    [row] = [row for row in fx.patches() if row.name == name]
    with contextlib.ExitStack() as stack:
        for point in row.points:
            stack.callback(point.put, point.get())
            point.put(patches._originals[point.name])
            if point.get() is None and isinstance(point.owner, dict):
                del point.owner[point.key]
        assert program() == without_row


def test_every_row_is_shown_to_be_needed():
    """A new row comes with a program that needs it. Axes of tangents have theirs in `tests/transformations/`."""
    rows = {row.name for row in fx.patches() if not row.name.startswith("axis of tangents")}
    assert rows == set(NEEDED)
