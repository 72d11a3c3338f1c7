"""JAX's native calls with a side effect: inside `fx.jit` they happen in program order, beside callbacks and prints."""

import ctypes
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import PartitionSpec as P

import effects as fx
from tests.helpers import build_handlers, run_python

I32 = jax.ShapeDtypeStruct((), jnp.int32)
EMPTY = jax.ShapeDtypeStruct((0,), jnp.int32)
noted = []


def _native(*results):
    """A call that notes the number that it is given, if any, and its place in the program."""

    def call(place, x, with_operand=True):
        def note(context, out, *operands):
            noted.append((place, *(int(np.asarray(operand)) for operand in operands)))
            for each in out:
                np.asarray(each)[...] = 0

        outs = buffer_callback(note, results, has_side_effect=True)(*[x] * with_operand)
        return x + outs[0] if results == (I32,) else x

    return call


def _io(place, x):
    def note(x):
        noted.append((place, int(x)))
        return np.int32(0)

    return x + io_callback(note, I32, x, ordered=True)


def _without_operand(*results):
    return lambda place, x: _native(*results)(place, x, with_operand=False)


LEAVES = [_native(I32), _native(), _native(EMPTY), _without_operand(I32), _without_operand(), _io]


def _program(draw, depth=0):
    """A function of a number, and the same in Python, which appends to lists: calls of Python, lines, native calls."""
    places, parts = draw.sample(range(10**6), 3), []
    for place in places:
        kind = draw.choice(["leaf", "leaf", "print", *["loop", "while", "branch", "call", "vmap"] * (depth < 2)])
        parts.append(_statement(draw, kind, place, depth))

    def run(x):
        for compiled, _ in parts:
            x = compiled(x)
        return x

    def expect(x, *lists):
        for _, python in parts:
            x = python(x, *lists)
        return x

    return run, expect


def _statement(draw, kind, place, depth):
    if kind == "leaf":
        leaf = draw.choice(LEAVES)
        has_operand = leaf not in LEAVES[3:5]
        return lambda x: leaf(place, x), lambda x, calls, *_: (calls.append((place, x)[: 1 + has_operand]), x)[1]
    if kind == "print":
        return (
            lambda x: (fx.print("{} {}", place, x), x + 1)[1],
            lambda x, calls, lines, _: (lines.append(f"{place} {x}"), x + 1)[1],
        )
    if kind == "vmap":
        call = jax.ffi.ffi_call("test.note by jax", I32, has_side_effect=True, vmap_method="sequential")
        return (
            lambda x: x + 0 * jax.vmap(call)(x + jnp.arange(2))[0],
            lambda x, calls, lines, native: (native.extend([x, x + 1]), x)[1],
        )
    run, expect = _program(draw, depth + 1)
    if kind == "call":
        return jax.jit(run), expect
    if kind == "branch":
        other, expect_other = _program(draw, depth + 1)

        def either(x, *lists):
            return (expect if x % 2 else expect_other)(x, *lists)

        return lambda x: jax.lax.cond(x % 2 == 1, run, other, x), either

    def repeat(x, *lists):
        for _ in range(2):
            x = expect(x, *lists)
        return x

    if kind == "loop":
        return lambda x: jax.lax.fori_loop(0, 2, lambda i, x: run(x), x), repeat

    def loop(x):
        return jax.lax.while_loop(lambda carry: carry[1] < 2, lambda carry: (run(carry[0]), carry[1] + 1), (x, 0))[0]

    return loop, repeat


@pytest.fixture(autouse=True, scope="module")
def _target():
    library = ctypes.CDLL(str(build_handlers()))
    jax.ffi.register_ffi_target("test.note by jax", jax.ffi.pycapsule(library.note), platform="cpu")


@pytest.mark.parametrize("seed", range(25))
def test_order_of_any_program(seed, lines, seen):
    run, expect = _program(random.Random(seed))
    calls, texts, native, out = [], [], [], []
    result = expect(seed, calls, texts, native)
    noted.clear()
    assert lines(lambda x: out.append(fx.jit(run)(x)), jnp.int32(seed)) == texts
    assert int(out[0]) == result
    assert noted == calls
    assert seen() == native


@pytest.mark.parametrize("check_vma", [False, True])
def test_order_in_regions(check_vma, lines):
    """Each device of a region makes its calls in its own order."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(x):
        for place in range(12):
            x = x + 0 * LEAVES[place % 3](place, x[0])
            fx.print("{} {}", place, x[0])
        return x

    f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma))
    noted.clear()
    said = lines(f, jnp.arange(4, dtype=jnp.int32))
    assert said == [f"{place} {device}" for place in range(12) for device in range(4)]
    for device in range(4):
        assert [place for place, each in noted if each == device] == [*range(12)]


REFUSED = """
import jax, jax.numpy as jnp, effects as fx
from jax.experimental.buffer_callback import buffer_callback
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
call = buffer_callback(lambda context, out, x: None, (), has_side_effect=True)
for jit in jax.jit, fx.jit:
    try:
        jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=(), axis_names={"x"}))(jnp.arange(2))
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition(": %")[0])
"""


def test_what_xla_refuses():
    """A process whose first program does not compile gets XLA's error, as it does under `jax.jit`."""
    first, second = run_python(REFUSED).stdout.splitlines()
    assert first == second
    assert "Side-effect ops cannot be replicated" in first
