"""`fx.custom_call` with handlers that a compiler has made: operands, transformations, order and records."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.extensions.custom_calls.common import EVERY_WAY, STEP, mesh_of_four

P = jax.P
F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((), I32)


# Operands, results, attributes, memory


@EVERY_WAY
def test_operands_and_results(way):
    """Pytrees of any number of buffers, nested tuples depth first; none at all."""
    sizes = jax.ShapeDtypeStruct((8,), I32)
    f8, f16 = jax.ShapeDtypeStruct((2,), F32), jax.ShapeDtypeStruct((2, 2), F32)
    a, b, c = jnp.zeros(1, jnp.uint8), jnp.zeros((3, 5), F32), jnp.zeros((), jnp.bfloat16)

    results = way(lambda a, b, c: fx.custom_call("test.sizes", ((sizes, (f8,)), {"x": f16}), (a, (b, c)), [b, {}]))(
        a, b, c
    )
    assert jax.tree.structure(results) == jax.tree.structure(((0, (0,)), {"x": 0}))
    assert results[0][0].tolist() == [1, 60, 2, 60, 32, 8, 16, -1]
    assert way(lambda: fx.custom_call("test.sizes", [sizes]))()[0].tolist() == [32] + [-1] * 7
    assert way(lambda x: fx.custom_call("test.sizes", sizes, x))(np.float32(1)).tolist()[:3] == [4, 32, -1]
    assert way(lambda: fx.custom_call("test.note_attribute", (), value=1, effect=STEP))() == ()
    assert way(lambda: fx.custom_call("test.note_attribute", None, value=1, effect=STEP.unordered()))() is None


@EVERY_WAY
def test_functions_of_the_older_signature(way, seen):
    """An adapter gives them any number of operands and results: none, one as it is, several as an array."""
    x, row, number = jnp.array([1.0, 2, 3]), jax.ShapeDtypeStruct((3,), F32), jnp.int32(5)
    assert way(lambda x: fx.custom_call("test.old_add", row, x, x))(x).tolist() == [2, 4, 6]
    assert way(lambda: fx.custom_call("test.old_count", ONE))() == 7
    first, second = way(lambda x, n: fx.custom_call("test.old_swap", (ONE, row), x, n, effect=STEP))(x, number)
    assert (first.item(), second.tolist()) == (5, [1, 2, 3])
    seen()
    way(lambda n: fx.custom_call("test.old_note", (), n, effect=STEP))(number)
    assert seen() == [5]


@EVERY_WAY
def test_attributes(way):
    """Numbers, strings, bytes, arrays, dictionaries."""
    given = {
        "flag": True,
        "whole": -7,
        "narrow": np.int32(5),
        "single": np.float32(0.5),
        "double": 0.25,
        "text": "naïve",
        "opaque": b"a\x00b",
        "array": np.arange(3, dtype=np.float32),
        "numbers": np.array([4, 5], ">i8"),
        "inner": {"deeper": {"x": 1}, "name": "n"},
    }
    out = way(lambda: fx.custom_call("test.attributes", jax.ShapeDtypeStruct((400,), jnp.uint8), **given))()
    text = bytes(np.asarray(out)).rstrip(b"\0").decode()
    assert text == (
        "array=[0.000000,1.000000,2.000000,]f32 double=0.250000f64 flag=true inner={deeper={x=1i64 } name='n' } "
        "narrow=5i32 numbers=[4,5,]i64 opaque='a\0b' single=0.500000f32 text='naïve' whole=-7i64 "
    )


@EVERY_WAY
def test_scratch_is_given_and_dropped(way):
    x = jnp.arange(5.0)
    assert way(lambda x: fx.custom_call("test.sum_by_scratch", jax.ShapeDtypeStruct((1,), F32), x, scratch=x))(
        x
    ).tolist() == [10]


@EVERY_WAY
def test_aliases(way):
    """A result in the memory of its operand, which itself stays as it was."""
    x = jnp.arange(4.0)
    assert way(lambda x: fx.custom_call("test.in_place", x, x, input_output_aliases={0: 0}) + x)(x).tolist() == [
        1,
        3,
        5,
        7,
    ]


@EVERY_WAY
def test_buffers_are_row_major(way):
    """Of a transposed array, too: so a handler gets columns, and so what it returns by columns is read."""
    x = jnp.arange(6.0).reshape(2, 3)
    flat = jax.ShapeDtypeStruct((6,), F32)
    columns = way(lambda x: fx.custom_call("test.flat", flat, jnp.swapaxes(x, -1, -2)))(x)
    assert columns.tolist() == [0, 3, 1, 4, 2, 5]
    of_columns = jax.ShapeDtypeStruct((3, 2), F32)
    back = way(lambda x: jnp.swapaxes(fx.custom_call("test.flat", of_columns, x), -1, -2))(columns)
    assert back.tolist() == x.tolist()


def test_ways_of_registering(library):
    """A function of a library, its capsule, a function that returns the capsule, a pair; the same again."""
    capsule = jax.ffi.pycapsule(library.add)
    for name, handler in {
        "ctypes": library.add,
        "capsule": capsule,
        "function": lambda: capsule,
        "pair": (library, "add"),
        "path": (library._name, "add"),
    }.items():
        for _ in range(2):
            fx.register_custom_call(f"test.as {name}", handler)
        assert fx.custom_call(f"test.as {name}", ONE_F32, jnp.float32(1), by=np.float32(2)) == 3


ONE_F32 = jax.ShapeDtypeStruct((), F32)


# Transformations


@pytest.mark.parametrize("method", ["sequential", "sequential_unrolled", "expand_dims", "broadcast_all"])
def test_vmap(method):
    x = jnp.arange(6.0).reshape(3, 2)
    one = lambda x: fx.custom_call("test.add", x, x, by=np.float32(1), vmap_method=method)  # noqa: E731
    assert fx.jit(jax.vmap(one))(x).tolist() == (x + 1).tolist()
    assert fx.jit(jax.vmap(jax.vmap(one)))(x).tolist() == (x + 1).tolist()
    assert fx.jit(jax.vmap(one, in_axes=1, out_axes=1))(x).tolist() == (x + 1).tolist()


def test_effect_under_vmap_is_for_every_lane(seen):
    """Of lanes of lanes, and where no operand has a lane."""
    note = lambda x: fx.custom_call("test.note", ONE, x, effect=STEP, vmap_method="sequential")  # noqa: E731
    twice = fx.jit(jax.vmap(jax.vmap(note)))
    assert twice(jnp.arange(6, dtype=I32).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert seen() == [0, 1, 2, 3, 4, 5]
    once = lambda _: fx.custom_call("test.note_attribute", (), value=7, effect=STEP, vmap_method="sequential")  # noqa: E731
    fx.jit(jax.vmap(once))(jnp.arange(3))
    assert seen() == [7, 7, 7]


def test_derivatives():
    """None of its own; those that `custom_vjp` gives."""
    add = lambda x: fx.custom_call("test.add", x, x, by=np.float32(1))  # noqa: E731
    with pytest.raises(fx.NotDifferentiable, match=r"`test.add` at .*test_custom_call.py.*`jax.custom_vjp`"):
        fx.jit(jax.grad(add))(1.0)
    assert fx.jit(jax.grad(lambda x: x * add(lax.stop_gradient(x))))(2.0) == 3
    with_derivative = jax.custom_vjp(add)
    with_derivative.defvjp(lambda x: (add(x), None), lambda _, cotangent: (10 * cotangent,))
    assert fx.jit(jax.grad(with_derivative))(1.0) == 10


def test_loop_carries_all_that_a_call_gives():
    step = lambda s: fx.custom_call("test.sizes", (jax.ShapeDtypeStruct((2,), I32), ONE), *s)  # noqa: E731
    sizes, _ = fx.jit(lambda: lax.while_loop(lambda s: s[0][0] < 8, step, (jnp.zeros(2, I32), jnp.int32(0))))()
    assert sizes.tolist() == [8, 4]


def test_calls_of_some_lanes_and_derivatives(seen):
    """Under a predicate that differs between lanes only those that have the call make it; in a loop that JAX divides it
    stays; in one that runs again it is not made again, and refused where that is needed."""

    def note(x, method="sequential"):
        return fx.custom_call("test.note", ONE, x, effect=STEP, vmap_method=method)

    def grown(y):
        return lax.scan(lambda y, i: (y * 2 + 0 * note(jnp.int32(7)), note(i)), y, jnp.arange(3))[0]

    def looped(y):
        return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1 + 0 * note(s[0]), s[1] * y), (0, y))[1]

    for way in (fx.jit, jax.jit):
        x = jnp.arange(4, dtype=I32)
        for method in ("sequential", "broadcast_all"):
            branch = jax.vmap(lambda x, m=method: lax.cond(x > 1, lambda x: note(x, m) + 1, lambda x: x, x))
            assert way(branch)(x).tolist() == [0, 1, 3, 4]
            jax.effects_barrier()
            assert seen() == [2, 3]
        assert way(jax.vmap(lambda x: lax.while_loop(lambda x: x < 3, lambda x: note(x) + 1, x)))(x).tolist() == [3] * 4
        jax.effects_barrier()
        assert seen() == [0, 1, 2, 1, 2, 2]
        for f in (grown, jax.checkpoint(grown)):
            assert way(jax.grad(f))(1.0) == 8
            jax.effects_barrier()
            assert seen() == [7, 0, 7, 1, 7, 2]
        assert way(lambda y: jax.jvp(looped, (y,), (1.0,)))(2.0) == (16, 32)
        jax.effects_barrier()
        assert seen() == [0, 1, 2]
        for f in (looped, jax.checkpoint(looped)):
            with pytest.raises(fx.NotDifferentiable, match="`test.note` at .* linearized"):
                way(lambda y, f=f: jax.linearize(f, y)[1](1.0))(2.0)
        seen()


# Order


def test_ten_thousand_calls_come_in_program_order(seen):
    """Across nested control flow and several programs, on several devices, from several threads."""

    @fx.jit
    def nested(x):
        def outer(i, x):
            x = lax.fori_loop(0, 10, lambda _, x: fx.custom_call("test.note", ONE, x, effect=STEP) + 1, x)
            return lax.cond(i % 3 == 0, lambda x: fx.custom_call("test.note", ONE, x, effect=STEP) + 1, lambda x: x, x)

        return lax.fori_loop(0, 30, outer, x)

    @fx.jit
    def unrelated(n):
        """Nothing but the effect orders these calls."""
        for i in range(10):
            fx.custom_call("test.note", ONE, n + i, effect=STEP)

    expected = []
    for turn in range(32):
        device = jax.devices()[turn % 4]
        start = len(expected)
        after = nested(jax.device_put(jnp.int32(start), device))
        expected += range(start, int(after))
        with jax.default_device(jax.devices()[(turn + 1) % 4]):
            unrelated(jnp.int32(len(expected)))
        expected += range(len(expected), len(expected) + 10)
    assert len(expected) > 10_000
    assert seen() == expected


def test_order_is_the_effects_doing(seen):
    """With the effect the calls come as written; without it XLA takes them as it likes."""

    def program(effect):
        def f(x):
            results = [fx.custom_call("test.note", ONE, x + i, effect=effect) for i in range(20)]
            return functools.reduce(lambda total, result: 2 * total + result, reversed(results))

        return fx.jit(f)

    ordered, free = program(STEP), program(None)
    for _ in range(20):
        assert ordered(jnp.int32(0)) == free(jnp.int32(0))
    every = seen()
    for turn in range(20):
        assert every[40 * turn : 40 * turn + 20] == list(range(20))
    assert sorted(every[20:40]) == list(range(20)) != every[20:40]


@EVERY_WAY
def test_asynchronous_handlers_keep_order(way, seen):
    """The result of a call that answers later is waited for, and the next call comes after it."""

    def f(x):
        x = lax.fori_loop(0, 20, lambda _, x: fx.custom_call("test.later", ONE, x, effect=STEP), x)
        return fx.custom_call("test.note", ONE, x, effect=STEP)

    assert way(f)(jnp.int32(0)) == 20
    assert seen() == list(range(21))


def test_effect_keeps_a_call_that_gives_nothing(seen):
    def f(effect):
        for value in (3, 1, 2):
            fx.custom_call("test.note_attribute", (), value=value, effect=effect)
        fx.custom_call("test.note_attribute", (), value=2, effect=effect)  # alike, and a call of its own

    for effect in (STEP, STEP.unordered()):
        fx.jit(f, static_argnums=0)(effect)
        fx.effects_barrier()
        assert sorted(seen()) == [1, 2, 2, 3]
    fx.jit(f, static_argnums=0)(None)
    assert seen() == []


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_device_calls_in_a_region(check_vma, seen):
    def body(x):
        y = fx.custom_call("test.add", jax.ShapeDtypeStruct((1,), F32), x, by=np.float32(1), effect=STEP)
        fx.custom_call("test.note", jax.ShapeDtypeStruct((1,), I32), x.astype(I32), effect=STEP)
        return y

    f = jax.shard_map(body, mesh=mesh_of_four(), in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
    assert fx.jit(f)(jnp.arange(4.0)).tolist() == [1, 2, 3, 4]
    assert sorted(seen()) == [0, 1, 2, 3]


def test_sharded_operands_are_seen_whole():
    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh_of_four(), P("x")))
    for effect in (None, STEP):
        f = fx.jit(
            lambda x, effect=effect: fx.custom_call(
                "test.sum_by_scratch", jax.ShapeDtypeStruct((1,), F32), x, scratch=x
            )
        )
        assert f(x).tolist() == [28]


# Records from C++


def test_native_code_prints_in_order(lines):
    def f(x):
        fx.print("before {}", x)
        y = fx.custom_call("test.say", ONE, x, effect="print")
        fx.print("after {}", y)

    shown = lines(fx.jit(lambda: lax.fori_loop(0, 3, lambda i, _: f(i), None)))
    assert shown == [line for i in range(3) for line in (f"before {i}", f'native {i} "0.5"', f"after {i}")]


def test_records_of_native_code():
    f = fx.jit(lambda x: fx.custom_call("test.say", ONE, x, effect="log"))
    with fx.capture() as records:
        f(jnp.int32(5))
    [printed] = records
    assert (printed.effect, printed.text, printed.where.file) == ("log", 'native 5 "0.5"', __file__)


def test_each_device_says_its_own(lines):
    f = jax.shard_map(
        lambda x: fx.custom_call("test.say", jax.ShapeDtypeStruct((1,), I32), x, effect="print"),
        mesh=mesh_of_four(),
        in_specs=P("x"),
        out_specs=P("x"),
    )
    assert lines(fx.jit(f), jnp.arange(4, dtype=I32)) == [f'native {n} "0.5"' for n in range(4)]


def test_sharded_program_says_it_once(lines):
    x = jax.device_put(jnp.arange(4, dtype=I32), jax.NamedSharding(mesh_of_four(), P("x")))
    f = fx.jit(lambda x: fx.custom_call("test.say", jax.ShapeDtypeStruct((4,), I32), x + 3, effect="print"))
    assert lines(f, x) == ['native 3 "0.5"']
