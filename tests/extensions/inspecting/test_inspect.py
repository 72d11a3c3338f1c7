"""`fx.inspect`: what stands between the start and the done of an asynchronous operation, and what XLA copies there."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import effects as fx
from effects.extensions.inspecting.inspect import Schedule

DEVICES = 4
X = jnp.arange(2.0 * DEVICES)


def _send(x):
    return fx.ppermute_start(x, "ring", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])


def _on_ring(program):
    mesh = jax.make_mesh((DEVICES,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(program, mesh=mesh, in_specs=P("ring"), out_specs=P("ring"))


def _names(lines):
    return [line.split()[0] for line in lines]


def _ring(x):
    def turn(carry, _):
        total, x = carry
        future = _send(x)
        total = total + x * x
        return (total, fx.async_done(future)), None

    return jax.lax.scan(turn, (x, x), length=DEVICES)[0][0]


def _carried_ring(x):
    def turn(carry, _):
        total, future = carry
        x = fx.async_done(future)
        future = _send(x)
        return (total + jnp.exp(x), future), None

    (total, future), _ = jax.lax.scan(turn, (jnp.exp(x), _send(x)), length=DEVICES - 2)
    return total + jnp.exp(fx.async_done(future))


@pytest.mark.parametrize("program", [_ring, _carried_ring])
def test_ring_is_compiled_without_a_copy_between_start_and_done(program):
    """Nothing in flight is a buffer of XLA's, so none must be copied, in a turn of a loop or from one to the next."""
    inspection = fx.inspect(_on_ring(program))(X)
    assert inspection.copies == ()
    assert [operation.copies for operation in inspection.operations] == [()] * len(inspection.operations)
    text = fx.jit(_on_ring(program)).lower(X).compile().as_text()
    bodies = [block for block in text.split("\n\n") if "effects_post" in block and not block.startswith("ENTRY")]
    assert bodies and not any(" copy(" in body for body in bodies)


@pytest.mark.parametrize("program", [_ring, _carried_ring])
def test_derivative_of_a_ring_is_compiled_without_a_copy_of_an_array(program):
    """What the forward pass stores is stored of the value that the tie to the start has given: it is made in place, and
    the value ahead of it would be copied. The counter of the loop is copied in the synchronous program, too."""
    inspection = fx.inspect(jax.grad(lambda x: jnp.sin(_on_ring(program)(x)).sum()))(X)
    assert {copy.shape for copy in inspection.copies} <= {"s32[]"}
    assert all(operation.copies is not None for operation in inspection.operations)


def test_started_function_is_computed_ahead_of_what_stands_between():
    """On CPUs, where XLA computes one after the other. So what stands between needs no copy of an operand of both."""

    def f(x, w):
        future = fx.async_start(lambda w: jnp.cumsum(jnp.sin(w)), w)
        return jnp.sort(x) + fx.async_done(future)

    def turn(_, x):
        future = fx.async_start(lambda x: x @ x, x)
        return x @ x.T + fx.async_done(future)

    def steps(program, *args):
        text = fx.jit(program).lower(*args).compile().as_text()
        (block,) = (block for block in text.split("\n\n") if "effects_keep" in block)
        return re.findall(r"(?<=effects_)keep|(?<=effects_)take|sort(?=\()|f32\S* copy(?=\()", block)

    assert steps(f, jnp.ones(64), jnp.ones(64))[-3:] == ["keep", "sort", "take"]
    assert steps(lambda x: jax.lax.fori_loop(0, 3, turn, x), jnp.ones((64, 64))) == ["keep", "take"]


def test_report():
    """Start, what stands between, each update and done stand where the program has them, each with its line."""

    @fx.jit
    def f(x):
        future = fx.async_start(jnp.sin, x)
        y = x * x
        future = fx.async_update(future)
        z = y + 1
        future = fx.async_update(future)
        return z / x - fx.async_done(future)

    inspection = fx.inspect(f)(jnp.ones(3))
    (operation,) = inspection.operations
    assert (operation.name, operation.kind) == ("sin", "async_start")
    assert [step.split("  /")[0] for step in operation.steps] == [
        "%1 = sin-start(float32[3])",
        "    mul float32[3]",
        "%1 = sin-update(%1)",
        "    add float32[3]",
        "%1 = sin-update(%1)",
        "    div float32[3]",
        "float32[3] = sin-done(%1)",
    ]
    for line, part in zip((0, 1, 2, 3, 4, 5, 5), operation.steps, strict=True):
        assert f"{__file__}:{operation.where.line + line}" in part
    assert [operation.start, *operation.updates, *operation.dones] == [operation.steps[at] for at in (0, 2, 4, 6)]
    assert _names(operation.between) == ["mul", "add", "div"]
    overlap = "overlap: none, since XLA computes a function at its start"
    own = "copied by the library: float32[3] at the start, float32[3] at the done"
    assert str(inspection).splitlines()[: len(operation.steps) + 2] == [*operation.steps, overlap, own]
    inspection = fx.inspect(lambda x: x * x + fx.async_done(fx.async_update(fx.async_start(jnp.sin, x))))(jnp.ones(3))
    assert str(inspection).splitlines()[-1] == "copies in between: none" and inspection.copies == ()


def test_callback_beside_a_value():
    """The function of a callback is not called, and updates belong to their operation."""

    def count(x):
        raise AssertionError("inspecting runs nothing")

    def f(x):
        future = fx.async_callback(count, jax.ShapeDtypeStruct((), "float32"), x, name="count")
        future = fx.async_update(future)
        kept = fx.async_start(jnp.sin, x)
        kept = fx.async_update(kept)
        return fx.async_done(future) + fx.async_done(kept)

    callback, kept = fx.inspect(f)(1.0).operations
    assert (callback.name, callback.kind) == ("count", "async_callback")
    assert (kept.name, kept.kind) == ("sin", "async_start")
    assert _names(callback.between) == ["sin", "sin-start", "sin-update"]
    assert _names(kept.between) == ["count-done"]
    assert callback.copies is not None and kept.copies is not None


def _written(operation):
    return [line.split("  ")[0] for line in (operation.start, *operation.updates, *operation.dones)]


def test_types_and_what_the_library_copies():
    """A start and a done have the types of the user's line. What is copied is what the function gave, or the device
    sends, at the start, and what comes back at the done."""

    def first(x, name, function):
        return function(x[:32])

    (kept,) = fx.inspect(lambda x: fx.async_done(fx.async_start(first, x, "name", jnp.sin)))(jnp.ones(64)).operations
    assert [step.split("-")[1] for step in _written(kept)] == ["start(float32[64])", "done(%1)"]
    assert _written(kept)[1].startswith("float32[32] = ") and kept.copied == ("float32[32]", "float32[32]")

    def positives(x):
        return fx.async_done(fx.async_update(fx.psum_start(x > 0, "ring")))

    (summed,) = fx.inspect(_on_ring(positives))(X).operations
    assert _written(summed) == [
        "%1 = psum-start(bool[2]{V:ring})",
        "%1 = psum-update(%1)",
        "int32[2] = psum-done(%1)",
    ]
    assert summed.copied == ("int32[4,2]{V:ring}", "int32[4,2]")
    assert "copied by the library: {} at the start, {} at the done".format(*summed.copied) in str(summed)


def test_types_of_a_start_without_operands():
    (operation,) = fx.inspect(lambda: fx.async_done(fx.async_start(lambda: jnp.ones(2), name="ones")))().operations
    assert _written(operation) == ["%1 = ones-start()", "float32[2] = ones-done(%1)"]


def test_types_under_transformations():
    """Under `vmap` they are those of a lane. What JAX starts for a derivative has no line of the user's."""

    def first(x):
        return fx.async_done(fx.async_start(lambda x: x[:2], x, name="first")).sum()

    (operation,) = fx.inspect(jax.vmap(first))(jnp.ones((5, 4))).operations
    assert _written(operation) == ["%1 = first-start(float32[4] in lanes (5,))", "float32[5,2] = first-done(%1)"]
    _, backward = fx.inspect(jax.grad(first))(jnp.ones(4)).operations
    assert _written(backward)[0].endswith("-start(float32[2])")


def test_carried_future_has_two_starts_and_two_dones():
    """A future that a loop carries is done in the next turn, or behind the loop. The condition of one is read, too."""
    first, of_turns = fx.inspect(_on_ring(_carried_ring))(X).operations
    assert [len(each.dones) for each in (first, of_turns)] == [1, 2]
    assert "exp" in _names(of_turns.between)

    @fx.jit
    def f(x):
        def turn(carry):
            return carry[0] + 1, fx.async_start(jnp.sin, fx.async_done(carry[1]))

        return fx.async_done(jax.lax.while_loop(lambda carry: carry[0] < 3, turn, (0, fx.async_start(jnp.cos, x)))[1])

    first, second = fx.inspect(f)(jnp.ones(3)).operations
    assert (first.name, second.name) == ("cos", "sin")
    assert [len(each.dones) for each in (first, second)] == [2, 2]  # in the loop, and behind it


def test_branches_exclude_each_other():
    """What another branch does is not between a start and a done in this one."""

    def f(x):
        def restart(fun):
            return lambda future: fx.async_start(fun, fx.async_done(future))

        future = fx.async_start(jnp.sin, x)
        future = jax.lax.cond(x > 0, restart(jnp.cos), restart(jnp.tan), future)
        y = jnp.exp(x)
        return y + jax.jit(lambda future: fx.async_done(future))(future)

    first, *restarted = fx.inspect(f)(1.0).operations
    assert len(first.dones) == 2
    assert {operation.name for operation in restarted} == {"cos", "tan"}
    assert [_names(operation.between) for operation in restarted] == [["exp"], ["exp"]]


SCHEDULE = """HloModule jit_f, is_scheduled=true

%body (p: (f32[2], f32[2])) -> (f32[2], f32[2]) {
  %p = (f32[2]{0}, f32[2]{0}) parameter(0)
  %ticket = f32[2]{0} get-tuple-element(%p), index=0
  %value = f32[2]{0} get-tuple-element(%p), index=1
  %copy.1 = f32[2]{0} copy(%value)
  %take = (f32[2]{0}, u32[4]{0}) custom-call(%copy.1, %ticket), custom_call_target="effects_take"
  %copy.2 = f32[2]{0} copy(%value)
  %post = (f32[2]{0}, u32[4]{0}) custom-call(%copy.2), custom_call_target="effects_post"
  %next = f32[2]{0} get-tuple-element(%post), index=0
  ROOT %out = (f32[2]{0}, f32[2]{0}) tuple(%next, %value)
}

%condition (q: (f32[2], f32[2])) -> pred[] {
  %q = (f32[2]{0}, f32[2]{0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %x = f32[2]{0} parameter(0), metadata={op_name="x"}
  %copy.3 = f32[2]{0} copy(%x)
  %post.1 = (f32[2]{0}, u32[4]{0}) custom-call(%copy.3), custom_call_target="effects_post"
  %ticket.1 = f32[2]{0} get-tuple-element(%post.1), index=0
  %copy.4 = f32[2]{0} copy(%x)
  %init = (f32[2]{0}, f32[2]{0}) tuple(%ticket.1, %copy.4)
  %while = (f32[2]{0}, f32[2]{0}) while(%init), condition=%condition, body=%body
  %ticket.2 = f32[2]{0} get-tuple-element(%while), index=0
  %copy.5 = f32[2]{0} copy(%x)
  ROOT %take.1 = f32[2]{0} custom-call(%copy.5, %ticket.2), custom_call_target="effects_take"
}
"""


def test_copies_in_a_schedule():
    """Copies are found on both sides of a loop that carries a ticket, with what they copy; others are left out."""
    schedule = Schedule(SCHEDULE)
    first, *turns = schedule.intervals
    assert [copy.name for copy in schedule.copies_in([first])] == ["copy.4", "copy.1"]
    assert [[copy.name for copy in schedule.copies_in([turn])] for turn in turns] == [["copy.1"], ["copy.5"]]
    copy = schedule.copies_in([first])[0]
    assert str(copy) == "%copy.4 = f32[2]{0} copy(%x), of the parameter `x`"


def test_copy_is_shown():
    """An argument that the program changes in between is copied there, since the caller keeps it."""

    def f(x):
        future = fx.async_start(jnp.sin, x)
        y = x.at[0].set(2)
        return y + fx.async_done(future)

    inspection = fx.inspect(f)(jnp.ones(64))
    (operation,) = inspection.operations
    (copy,) = operation.copies
    assert inspection.copies == (copy,)
    assert copy.shape.startswith("f32[64]")
    assert str(inspection).splitlines()[-1] == f"copy in between: {copy}"
