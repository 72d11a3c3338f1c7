"""Custom calls that are started as asynchronous operations: the program goes on before the handler answers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.extensions.custom_calls.common import STEP, mesh_of_four

P = jax.P
I32 = jax.ShapeDtypeStruct((), np.int32)


def hold(x, **options):
    return fx.custom_call("test.hold", jax.ShapeDtypeStruct(x.shape, np.int32), x, **options)


def release(x):
    return fx.custom_call("test.release", I32, x, effect=STEP)


# An unordered call has no place before `release`, which XLA may then run first, and nothing would answer the call.
@pytest.mark.parametrize("effect", [None, STEP], ids=["none", "ordered"])
@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_what_stands_between_answers_the_handler(effect, shape, lines):
    """The handler gives its result when what comes after it in the program has run: it would never be done else."""

    @fx.jit
    def program(x):
        future = fx.async_start(lambda x: hold(x, effect=effect), x)
        fx.print("started")
        released = release(jnp.int32(0))
        fx.print("released {}", released)
        y = fx.async_done(future)
        fx.print("done {}", y)
        return y

    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    results = []
    shown = lines(lambda: results.append(program(x)))
    np.testing.assert_array_equal(results[0], x + 1)
    assert shown == ["started", "released 1", f"done {x + 1}"]


def test_loop_carries_the_future_of_a_call(lines):
    """Each iteration answers what the one before has started. Operands are copies: XLA writes to theirs meanwhile."""

    @fx.jit
    def program(x):
        def turn(i, carry):
            future, total = carry
            following = fx.async_start(hold, total + i)
            total = total + release(i)
            return following, total + fx.async_done(future)

        future, total = lax.fori_loop(0, 100, turn, (fx.async_start(hold, x), x))
        return release(total), fx.async_done(future)

    def expected(x):
        future, total, waiting = x + 1, x, 1
        for i in range(100):
            following = total + i + 1
            total += waiting + 1
            waiting = 0
            future, total = following, total + future
        return waiting, future

    for start in (0, 5):
        released, last = program(np.int32(start))
        assert int(last) == np.int32(np.uint32(expected(start)[1] & 0xFFFFFFFF))
        assert int(released) == 0


def test_results_are_chosen_and_ordered_as_the_function_gives_them():
    """Of several results, of which one is scratch memory, in a structure of the user's."""
    total, nothing = jax.ShapeDtypeStruct((1,), np.float32), jax.ShapeDtypeStruct((4,), np.float32)

    @fx.jit
    def program(x):
        future = fx.async_start(
            lambda x: {"sum": fx.custom_call("test.sum_by_scratch", (total,), x, scratch=(nothing,))[0]}, x
        )
        return fx.async_done(future)

    np.testing.assert_array_equal(program(jnp.arange(4.0))["sum"], [6.0])
    f32 = jax.ShapeDtypeStruct((4,), np.float32)

    @fx.jit
    def swapped(x):
        def both(x):
            total, doubled = fx.custom_call("test.sum_by_scratch", (jax.ShapeDtypeStruct((1,), np.float32), f32), x)
            return doubled, total

        doubled, total = fx.async_done(fx.async_start(both, x))
        return doubled, total

    doubled, total = swapped(jnp.arange(4.0))
    np.testing.assert_array_equal(doubled, [0.0, 2.0, 4.0, 6.0])
    np.testing.assert_array_equal(total, [6.0])


def test_operand_that_is_the_result_stays_that():
    """A handler that works in place does so in the copy."""
    f32 = jax.ShapeDtypeStruct((3,), np.float32)

    @fx.jit
    def program(x):
        future = fx.async_start(lambda x: fx.custom_call("test.in_place", f32, x, input_output_aliases={0: 0}), x)
        return fx.async_done(future), x

    y, x = program(jnp.arange(3.0))
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(y, [1.0, 2.0, 3.0])


def test_results_that_are_used_besides_are_computed_at_the_start():
    """So are those that go through arithmetic on their way: values are right in both."""

    @fx.jit
    def program(x):
        y = fx.custom_call("test.later", I32, x)
        future = fx.async_start(lambda: y)
        other = fx.async_start(lambda x: 2 * fx.custom_call("test.later", I32, x), x)
        return y + fx.async_done(future), fx.async_done(other)

    assert [int(y) for y in program(np.int32(3))] == [8, 8]


@pytest.mark.parametrize("method", ["broadcast_all", "sequential"])
def test_lanes(method):
    """One call for all lanes, or one for each: the lanes' results are done by themselves."""

    def one(x, y):
        future = fx.async_start(
            lambda x: fx.custom_call("test.sizes", jax.ShapeDtypeStruct((2,), np.int32), x, vmap_method=method), x
        )
        kept = fx.async_start(lambda x: fx.custom_call("test.add", x, x, by=np.float32(1), vmap_method=method), y)
        return fx.async_done(kept), fx.async_done(future)

    xs, ys = jnp.arange(6.0).reshape(3, 2), jnp.arange(3.0)
    added, sizes = fx.jit(jax.vmap(one))(xs, ys)
    np.testing.assert_array_equal(added, [1.0, 2.0, 3.0])
    each = [24, 24] if method == "broadcast_all" else [8, 8]
    np.testing.assert_array_equal(np.ravel(sizes)[:2], each)


def test_every_device_of_a_region_has_its_own():
    mesh = mesh_of_four()

    def region(x):
        future = fx.async_start(hold, x)
        lax.psum(release(x[0]), "x")
        return fx.async_done(future)

    # One device may answer what all have started by then, or its own alone: each releases after its own start.
    program = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
    x = jnp.arange(8, dtype=np.int32)
    for _ in range(20):
        np.testing.assert_array_equal(program(x), x + 1)


def test_error_of_an_answer_names_the_call_and_its_line():
    """It ends the program, as without a future, and is raised once."""

    @fx.jit
    def program(x):
        future = fx.async_start(lambda x: fx.custom_call("test.later", I32, x, effect=STEP), x)
        return fx.async_done(future)

    assert int(program(np.int32(1))) == 2
    with pytest.raises(fx.CustomCallError, match=r"`test.later` at .*test_started.py:\d+.* nobody answers"):
        program(np.int32(-1))
        fx.effects_barrier(timeout=60)
    fx.effects_barrier(timeout=60)
    assert int(program(np.int32(3))) == 4


def test_error_that_is_returned_at_once():
    @fx.jit
    def program(x):
        return fx.async_done(
            fx.async_start(lambda x: fx.custom_call("test.fail_with", I32, x, text="no", effect=STEP), x)
        )

    with pytest.raises(fx.CustomCallError, match="no"):
        program(np.int32(1))
        fx.effects_barrier(timeout=60)
    fx.effects_barrier(timeout=60)


def test_what_a_handler_prints_comes_at_the_start(lines):
    @fx.jit
    def program(x):
        future = fx.async_start(lambda x: fx.custom_call("test.say", I32, x, effect="print"), x)
        fx.print("between")
        fx.print("done {}", fx.async_done(future))

    assert lines(program, np.int32(4)) == ['native 4 "0.5"', "between", "done 4"]


def test_call_whose_future_is_never_done_is_refused():
    with pytest.raises(fx.FutureError, match=r"test_started.py:\d+"):
        fx.jit(lambda x: fx.async_start(lambda x: hold(x, effect=STEP), x) and x)(np.int32(1))


@pytest.mark.parametrize("effect", [None, STEP])
def test_without_native_handlers_it_is_called_as_any_other(effect):
    """What it gives stays in the program then."""

    def program(x):
        future = fx.async_start(lambda x: fx.custom_call("test.later", I32, x, effect=effect), x)
        return fx.async_done(future) + 1

    with fx.config.override(native=False):
        assert int(fx.jit(program)(np.int32(3))) == 5
