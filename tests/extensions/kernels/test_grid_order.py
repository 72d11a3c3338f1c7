"""Kernels whose grid is visited in other orders: `fx.pallas_call`, and `check_grid_races`."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from effects.extensions.kernels.api import numbers_in_order
from effects.testing import check_grid_races

pytestmark = pytest.mark.slow

X = jnp.arange(8, dtype=jnp.int32)
INT = jax.ShapeDtypeStruct((8,), jnp.int32)
ONE = jax.ShapeDtypeStruct((1,), jnp.int32)
SHUFFLED = pltpu.InterpretParams(num_cores_or_threads=2)
PAIRS = pl.BlockSpec((2,), lambda i: (i,))


def _last(x_ref, o_ref):
    """Which program was the last says what is left."""

    def body(i, _):
        o_ref[0] = x_ref[2 * pl.program_id(0) + pl.program_id(1)] + 0 * i

    jax.lax.fori_loop(0, 2, body, None)


def test_orders():
    """The last program of an order is the one whose result is left, under `vmap` too."""
    left = []
    for order in ("program", "reverse", 1):
        call = fx.pallas_call(_last, ONE, grid=(4, 2), interpret=True, grid_order=order)
        left.append(int(fx.jit(call)(X)[0]))
    assert left[:2] == [7, 0] and left[2] not in left[:2]
    assert fx.jit(jax.vmap(lambda x: call(x)[0]))(jnp.stack([X, X + 3])).tolist() == [left[2], left[2] + 3]


def test_what_does_not_depend_on_the_order():
    """Blocks, prefetched scalars and aliased inputs are those of the program, whenever it comes."""

    def kernel(starts_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] + starts_ref[pl.program_id(0)]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((4,), lambda i, starts: (starts[i],))],
        out_specs=pl.BlockSpec((4,), lambda i, _: (i,)),
    )
    for order in ("reverse", 5):
        call = fx.pallas_call(kernel, INT, grid_spec=spec, interpret=True, grid_order=order)
        assert call(jnp.array([1, 0]), X).tolist() == [5, 6, 7, 8, 0, 1, 2, 3]

        def add(x_ref, o_ref):
            o_ref[pl.program_id(0)] = x_ref[pl.program_id(0)] + 1

        options = {"grid": (8,), "interpret": True, "input_output_aliases": {0: 0}}
        assert fx.pallas_call(add, INT, grid_order=order, **options)(X).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def _asking(called):
    """A kernel that waits for a callback in a branch of a loop, between effects for which it does not wait."""

    def ask(i, x):
        called.append((int(i), int(x)))
        return np.asarray(x) + 1

    def kernel(x_ref, o_ref):
        program = pl.program_id(0)
        fx.print("{grid} begins")

        def body(j, _):
            fx.print("{grid} {} {}", j, x_ref, ordered=False)

            @pl.when(j == program % 2)
            def _():
                o_ref[j] = fx.callback(ask, jax.ShapeDtypeStruct((), jnp.int32), program, x_ref[j])
                fx.print("{grid} has {}", o_ref[j])

        o_ref[...] = x_ref[...]
        jax.lax.fori_loop(0, 2, body, None)

    return kernel


def test_order_beside_references():
    """JAX takes no arrays that a loop closes over where it turns references into values."""

    def kernel(x_ref, o_ref):
        def turn(i):
            o_ref[0] = fx.callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct((), jnp.int32), x_ref[i])

        pl.loop(0, x_ref[1])(turn)
        o_ref[1] = pl.num_programs(0)

    call = fx.pallas_call(kernel, INT, grid=(2,), in_specs=[PAIRS], out_specs=PAIRS, interpret=True, grid_order=1)

    def f(x):
        def condition(i):
            cell = jax.new_ref(x)
            return (call(cell[...])[1] == 2) & (i < 3)

        return jax.lax.while_loop(condition, lambda i: i + 1, 0)

    assert fx.jit(f)(X) == 3
    fx.effects_barrier()


def _ordered_lines(records):
    return [record.text for record in records if "begins" in record.text or "has" in record.text]


@pytest.mark.parametrize(
    "options", [{"interpret": True, "grid_order": 3}, {"interpret": SHUFFLED}], ids=["ours", "jax's"]
)
@pytest.mark.parametrize("around", ["while_loop", "scan", "cond", "jit", "checkpoint"])
def test_order_in_constructs_that_use_a_reference(around, options, lines):
    """JAX discharges a reference in a body, to which the numbers of the order come as constants."""

    def kernel(x_ref, o_ref):
        fx.print("program {}", pl.program_id(0))
        o_ref[...] = x_ref[...] + 1

    parallel = pltpu.CompilerParams(dimension_semantics=("parallel",))
    call = fx.pallas_call(kernel, INT, grid=(4,), compiler_params=parallel, **options)

    def f(x):
        calls = jax.new_ref(jnp.int32(0))

        def body(x):
            calls[...] = calls[...] + 1
            return call(x)

        constructs = {
            "while_loop": lambda: jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, body(c[1])), (0, x))[1],
            "scan": lambda: jax.lax.scan(lambda x, _: (body(x), None), x, None, 1)[0],
            "cond": lambda: jax.lax.cond(x[0] >= 0, body, lambda x: x, x),
            "jit": lambda: jax.jit(body)(x),
            "checkpoint": lambda: jax.checkpoint(call)(x + calls[...]),
        }
        return constructs[around](), jax.freeze(calls)

    results = []
    shown = lines(lambda: results.append(fx.jit(f)(X)))
    assert sorted(shown) == [f"program {i}" for i in range(4)] and shown == lines(lambda: fx.jit(call)(X))
    assert results[0][0].tolist() == (X + 1).tolist()


@pytest.mark.parametrize("jit, order", [(fx.jit, "program"), (fx.jit, 3), (jax.jit, "reverse")])
def test_effects_beside_awaited_callbacks_are_shown_in_the_order_of_the_grid(jit, order):
    """What a kernel waits for comes as visited, and all else as in the order of the grid."""
    called = []
    options = {"grid": (4,), "in_specs": [PAIRS], "out_specs": PAIRS, "interpret": True}
    with fx.capture(suppress=True) as records:
        result = jit(fx.pallas_call(_asking(called), INT, grid_order=order, **options))(X)
        fx.effects_barrier()
    assert result.tolist() == [1, 1, 2, 4, 5, 5, 6, 8]
    visited = list(range(4)) if order == "program" else numbers_in_order(order, 4).tolist()
    assert called == [(i, 2 * i + i % 2) for i in visited]
    assert [record.grid for record in records if record.effect == "callback"] == [(i,) for i in visited]
    prints = [record for record in records if record.effect == "print"]
    ordered = [text for i in range(4) for text in (f"({i},) begins", f"({i},) has {2 * i + i % 2 + 1}")]
    assert _ordered_lines(prints) == ordered
    unordered = [f"({i},) {j} [{2 * i} {2 * i + 1}]" for i in range(4) for j in range(2)]
    assert sorted({record.text for record in prints} - {*ordered}) == unordered


@pytest.mark.parametrize("around", ["vmap", "shard_map", "two kernels"])
def test_effects_beside_awaited_callbacks_in_transformations(around):
    called = []
    options = {"grid": (4,), "in_specs": [PAIRS], "out_specs": PAIRS, "interpret": True, "grid_order": "reverse"}
    kernel = fx.pallas_call(_asking(called), INT, **options)
    if around == "vmap":
        fun = jax.vmap(kernel)
    elif around == "shard_map":
        mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("d")
        fun = jax.shard_map(lambda x: kernel(x[0])[None], mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    else:
        fun = lambda xs: jnp.stack([kernel(xs[0]), kernel(xs[1])])  # noqa: E731
    with fx.capture(suppress=True) as records:
        result = fx.jit(fun)(jnp.stack([X, X + 10]))
        fx.effects_barrier()
    assert result.tolist() == [[1, 1, 2, 4, 5, 5, 6, 8], [11, 11, 12, 14, 15, 15, 16, 18]]
    prints = [record for record in records if record.effect == "print"]
    shown = (
        [_ordered_lines(prints)]
        if around != "shard_map"
        else [_ordered_lines([record for record in prints if record.device == device]) for device in range(2)]
    )
    grids = [f"{lane}, {i}" if around == "vmap" else f"{i}," for lane in range(2) for i in range(4)]
    has = [value for row in result.tolist() for value in (row[0], row[3], row[4], row[7])]
    assert [*itertools.chain(*shown)] == [
        line for at, grid in enumerate(grids) for line in (f"({grid}) begins", f"({grid}) has {has[at]}")
    ]
    visited = [i for _ in range(2) for i in (3, 2, 1, 0)]
    assert sorted(i for i, _ in called) == sorted(visited)
    if around == "two kernels":
        assert [i for i, _ in called] == visited


def test_effects_are_shown_in_the_order_of_the_grid():
    """Values are those of the order in which the grid was visited, and lines stand as in any order."""

    def kernel(x_ref, o_ref, count_ref):
        @pl.when(x_ref[0] == x_ref[0])
        def _():
            fx.print("{grid} {}", x_ref)

        fx.callback(lambda x: called.append(int(x)), None, count_ref[0])
        count_ref[0] += 1
        o_ref[...] = x_ref[...]

    options = {"grid": (4,), "in_specs": [PAIRS], "out_specs": PAIRS, "interpret": True}
    options["scratch_shapes"] = [pltpu.SMEM((1,), jnp.int32)]
    for order, counts in (("program", [0, 1, 2, 3]), ("reverse", [3, 2, 1, 0])):
        called = []
        with fx.capture(suppress=True) as records:
            fx.jit(fx.pallas_call(kernel, INT, grid_order=order, **options))(X)
            fx.effects_barrier()
        assert [record.text for record in records if record.effect == "print"] == [
            f"({i},) [{2 * i} {2 * i + 1}]" for i in range(4)
        ]
        assert np.subtract(called, min(called)).tolist() == counts


@pytest.mark.parametrize("order", [-1, None, 1.5, True])
def test_unknown_order(order):
    with pytest.raises(ValueError, match=r"grid order.*test_grid_order.py:\d+|test_grid_order.py:\d+.*grid order"):
        fx.pallas_call(_last, ONE, grid=(4, 2), interpret=True, grid_order=order)


def _copy(x_ref, o_ref):
    fx.print("{}", x_ref[0])
    o_ref[...] = x_ref[...] + pl.program_id(0)


def _pairs(kernel, out_map=lambda i: (i,)):
    spec = pl.BlockSpec((2,), out_map)
    return pl.pallas_call(kernel, INT, grid=(4,), in_specs=[PAIRS], out_specs=spec, interpret=True)


def test_kernels_without_races(capsys):
    """Nothing is reported, and nothing printed; the function may do what it likes around its kernels."""
    check_grid_races(jax.jit(_pairs(_copy)), X, orders=2)
    check_grid_races(
        fx.jit(lambda x: jax.lax.scan(lambda x, _: (_pairs(_copy)(x), None), x, None, length=2)[0]), X, orders=3
    )
    check_grid_races(jax.vmap(_pairs(_copy)), jnp.stack([X, X + 1]), orders=2)
    mesh, spec = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("i")
    sharded = jax.shard_map(_pairs(_copy), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    check_grid_races(fx.jit(sharded), jnp.arange(32), orders=2)
    assert capsys.readouterr().out == ""


def test_kernels_without_races_that_record_much():
    """More than the log of a compiled kernel would take, in one effect and in many."""

    def block(x_ref, o_ref):
        fx.print("{}", x_ref[...])
        o_ref[...] = x_ref[...]

    def often(x_ref, o_ref):
        jax.lax.fori_loop(0, 400, lambda i, _: fx.print("{} {}", i, x_ref[0]), None)
        o_ref[...] = x_ref[...]

    large = pl.pallas_call(block, jax.ShapeDtypeStruct((1024,), jnp.int32), interpret=True)
    check_grid_races(large, jnp.arange(1024), orders=2)
    check_grid_races(_pairs(often), X, orders=2)


def test_arguments_that_are_no_arrays():
    def scaled(x, how, size):
        assert how == "twice"
        return 2 * pl.pallas_call(
            _copy, INT, grid=(size,), in_specs=[PAIRS], out_specs=pl.BlockSpec((2,), lambda i: (i,)), interpret=True
        )(x["x"])

    check_grid_races(scaled, {"x": X}, "twice", 4, orders=2)


def test_programs_that_write_the_same_block():
    """The report has the first element that differs, in both orders."""
    with pytest.raises(AssertionError) as caught:
        check_grid_races(_pairs(_copy, lambda i: (i // 2,)), X)
    assert str(caught.value).splitlines()[1:] == [
        "- result 0 at (0,) is 0 in the order reverse, and 3 in that of the grid"
    ]


def test_records_that_differ():
    """An accumulator that counts on an order is found by what it prints, too."""

    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.where(pl.program_id(0) == 0, 0, o_ref[...]) + x_ref[...]
        fx.print("sum {}", o_ref[0])

    said = r"- record 'sum 2' of program \(1,\) at .* comes only in that of the grid"
    with pytest.raises(AssertionError, match=said):
        check_grid_races(_pairs(kernel, lambda i: (0,)), X, orders=2)


def test_what_cannot_be_checked():
    with pytest.raises(ValueError, match="ran no simulated kernel"):
        check_grid_races(lambda x: x + 1, X)
    with pytest.raises(ValueError, match="given 1 orders"):
        check_grid_races(_pairs(_copy), X, orders=1)
