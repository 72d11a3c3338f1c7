"""Effects of kernels that go into a log, as those of compiled kernels do: here JAX simulates the kernels that write it.

What a log gives is what the simulation itself gives, to the byte.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from effects import _jax
from tests.helpers import meet_barrier

X = jnp.arange(8, dtype=jnp.float32)


def call(kernel, *args, out=None, **options):
    """Calls a kernel in the simulation, with a result like its first operand."""
    shape = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype) if out is None else out
    return pl.pallas_call(kernel, out_shape=shape, interpret=True, **options)(*args)


def seen(f, *args):
    """What a program gives and records."""
    with fx.capture(suppress=True) as records:
        result = jax.block_until_ready(f(*args))
        meet_barrier()
    shown = [(r.text, r.grid, r.lane, r.effect, r.where.line, r.device, r.ordered) for r in records]
    return jax.tree.map(lambda x: np.asarray(x).tolist(), result), shown


def logged(f, *args):
    """The same with logs."""
    with _jax.with_kernel_options(logs_simulated=True):
        return seen(f, *args)


def k_straight(x_ref, o_ref):
    fx.print("{} of {grid}: {}", pl.program_id(0), x_ref[...])
    fx.log("point", begin=x_ref[0], kind="static")
    o_ref[...] = x_ref[...] * 2


def k_loops(x_ref, o_ref):
    def inner(n, total):
        fx.print("inner {} {} {}", n, total, pl.program_id(0))
        return total + x_ref[n]

    def outer(m, total):
        total = jax.lax.fori_loop(0, m + 1, inner, total)
        fx.print("outer {} {}", m, total)
        return total

    o_ref[...] = x_ref[...] + jax.lax.fori_loop(0, 2, outer, 0.0)


def k_branches(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 1)
    def _():
        fx.print("only {}", pl.program_id(0))

    def odd(v):
        fx.print("odd {}", v)
        return v * 3

    o_ref[...] = x_ref[...] + jax.lax.cond(pl.program_id(0) % 2 == 1, odd, lambda v: v, x_ref[0])


def k_condition(x_ref, o_ref):
    def condition(i):
        fx.print("ask {}", x_ref[i])
        return i < 2

    def body(i):
        fx.print("turn {}", i)
        return i + 1

    jax.lax.while_loop(condition, body, 0)
    o_ref[...] = x_ref[...]


def k_scoped(x_ref, o_ref):
    def body(t_ref):
        t_ref[...] = x_ref[...] + 1
        fx.print("scoped {}", t_ref)
        return t_ref[0]

    o_ref[...] = x_ref[...] * pl.run_scoped(body, pltpu.VMEM((4,), jnp.float32))


def k_nested(x_ref, o_ref):
    @jax.jit
    def inner(v):
        fx.print("inner {}", v[0])
        return v + 1

    o_ref[...] = inner(inner(x_ref[...]))


def k_lanes(x_ref, o_ref):
    jax.vmap(lambda v: fx.print("lane {}", v))(x_ref[...])
    jax.vmap(lambda v: jax.lax.cond(v > 2, lambda: fx.print("large {}", v), lambda: None))(x_ref[...])
    o_ref[...] = x_ref[...]


def k_jaxs(x_ref, o_ref):
    jax.debug.print("debug {}", x_ref[0])
    pl.debug_print("pallas {}", x_ref[1])
    jax.debug.print("unordered {x}", x=x_ref[2])
    o_ref[...] = x_ref[...]


def k_custom(x_ref, o_ref):
    @jax.custom_jvp
    def f(v):
        fx.print("custom {}", v)
        return v * 2

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2))
    o_ref[...] = f(x_ref[...])


KERNELS = [k_straight, k_loops, k_branches, k_condition, k_scoped, k_nested, k_lanes, k_jaxs, k_custom]
BLOCKS = {
    "grid": (2,),
    "in_specs": [pl.BlockSpec((4,), lambda i: (i,))],
    "out_specs": pl.BlockSpec((4,), lambda i: (i,)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, jit", [*((kernel, fx.jit) for kernel in KERNELS), (k_straight, jax.jit), (k_jaxs, jax.jit)]
)
def test_a_log_gives_what_the_simulation_gives(kernel, jit):
    """Every construct: the same text, places, lines and values."""

    def f(x):
        fx.print("before")
        y = call(kernel, x, **BLOCKS)
        fx.print("after {}", y.sum())
        return y

    direct = seen(jit(f), X)
    assert len(direct[1]) > 2 or (kernel is k_jaxs and jit is jax.jit)  # there they are JAX's own
    assert logged(jit(f), X) == direct


@pytest.mark.parametrize("kernel", [k_branches, k_lanes])
def test_lanes_of_a_vmap(kernel):
    """A lane is ahead of the index, whether it is an axis of the grid or masked out of it."""

    def f(x):
        return call(kernel, x, **BLOCKS)

    def masked(x):
        return jax.lax.cond(x[0] > 1, f, lambda x: x, x)

    stacked = jnp.stack([X, X + 10])
    assert logged(fx.jit(jax.vmap(jax.vmap(f))), stacked[None]) == seen(fx.jit(jax.vmap(jax.vmap(f))), stacked[None])
    direct = seen(fx.jit(jax.vmap(masked)), stacked)
    assert {grid[0] for _, grid, *_ in direct[1]} == {1}
    assert logged(fx.jit(jax.vmap(masked)), stacked) == direct


@pytest.mark.parametrize("grid", [(), (2, 1, 3)])
def test_grids_of_every_rank(grid):
    """A kernel without a grid, and one of rank three in which the last axis is innermost."""

    def kernel(o_ref):
        fx.print("{grid}")
        o_ref[...] = jnp.zeros((2,), jnp.int32)

    f = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((2,), jnp.int32), grid=grid, interpret=True)
    direct = seen(fx.jit(f))
    assert [index for _, index, *_ in direct[1]] == list(np.ndindex(*grid))
    assert logged(fx.jit(f)) == direct


TYPES = [
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32", "complex64",
    "int4", "float8_e4m3fn",
]  # fmt: skip


@pytest.mark.parametrize(
    "x64, types",
    [
        pytest.param(False, TYPES, id="32 bits", marks=pytest.mark.slow),
        pytest.param(True, ["int64", "uint64", "float64", "complex128"], id="64 bits"),
    ],
)
def test_types(x64, types):
    """A value comes back bit for bit, scalars and arrays, extreme ones too."""

    def extreme(dtype):
        values = jnp.array([0, 1, 2, 3, 5, 7], "float32").astype(dtype)
        if jnp.issubdtype(values.dtype, jnp.integer):
            return values.at[0].set(jnp.iinfo(dtype).min).at[1].set(jnp.iinfo(dtype).max)
        if jnp.issubdtype(values.dtype, jnp.floating) and dtype != "float8_e4m3fn":
            return values.at[0].set(jnp.finfo(dtype).min).at[1].set(jnp.nan).at[2].set(-0.0)
        return values.at[0].set(1 - 2.5j) if dtype.startswith("complex") else values

    def kernel(*refs):
        for ref in refs[:-1]:
            v = ref[...]
            fx.print("{}", v[0])
            fx.print("{} {}", v[1], v.reshape(2, 3))
        refs[-1][...] = jnp.zeros((2,), jnp.int32)

    def run(*args):
        return call(kernel, *args, out=jax.ShapeDtypeStruct((2,), jnp.int32))

    with jax.enable_x64(x64):
        values = [extreme(dtype) for dtype in types]
        direct = seen(fx.jit(run), *values)
        assert len(direct[1]) == 2 * len(types)
        assert logged(fx.jit(run), *values) == direct


def test_callbacks_without_results_are_called():
    """Functions run in their places between prints, one by one, with arguments and record."""
    calls = []

    def note(x, record):
        calls.append((float(x), record.grid, record.text))

    def kernel(x_ref, o_ref):
        fx.print("first")
        fx.callback(note, None, x_ref[0], pass_record=True)
        jax.debug.callback(lambda x: calls.append(float(x)), x_ref[1])
        fx.print("last")
        o_ref[...] = x_ref[...]

    def f(x):
        return call(kernel, x, **BLOCKS)

    direct = seen(fx.jit(f), X)
    expected, calls[:] = [*calls], []
    assert [type(x) for x in expected] == [tuple, float, tuple, float]
    assert logged(fx.jit(f), X) == direct
    assert calls == expected


def test_effects_of_several_orders():
    """Unordered effects come without an order, and all of them come."""

    def kernel(x_ref, o_ref):
        fx.print("ordered {}", x_ref[0])
        fx.print("unordered {}", x_ref[1], ordered=False)
        o_ref[...] = x_ref[...]

    def f(x):
        return call(kernel, x, **BLOCKS)

    result, records = logged(fx.jit(f), X)
    direct, expected = seen(fx.jit(f), X)
    assert result == direct
    assert sorted(map(str, records)) == sorted(map(str, expected))


def test_what_fails_stops_the_effects_behind_it():
    """A callback that raises: effects of its kernel behind it, and of the program, are left out and counted."""

    def refuse(x):
        raise ValueError("no")

    def kernel(x_ref, o_ref):
        fx.print("before {grid}")
        fx.callback(refuse, None, x_ref[0])
        fx.print("after {grid}")
        o_ref[...] = x_ref[...]

    @fx.jit
    def f(x):
        y = call(kernel, x, **BLOCKS)
        fx.print("end")
        return y

    raised = []
    for forced in (False, True):
        with _jax.with_kernel_options(logs_simulated=forced), fx.capture(suppress=True) as records:
            f(X)
            with pytest.raises(fx.EffectError) as error:
                meet_barrier()
        raised.append((str(error.value), [r.text for r in records]))
        raised[-1] = raised[-1], getattr(error.value, "__notes__", [])
    assert raised[0] == raised[1]
    assert [text for text in raised[0][0][1] if "(0,)" in text or "(1,)" in text or text == "end"] == ["before (0,)"]


def test_handlers_get_single_records(tmp_path):
    """JSON lines have a line for each effect, and so do run files, although the effects of a kernel share a token."""

    @fx.jit
    def f(x):
        fx.print("before")
        y = call(k_lanes, call(k_straight, x, **BLOCKS), **BLOCKS)
        fx.print("after")
        return y

    texts = []
    for forced in (False, True):
        path = tmp_path / f"{forced}.jsonl"
        handler = fx.add_handler(fx.JsonLinesHandler(path))
        try:
            with (
                _jax.with_kernel_options(logs_simulated=forced),
                fx.capture(suppress=True),
                fx.record(tmp_path / "run.fx"),
            ):
                f(X)
        finally:
            fx.remove_handler(handler)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        texts.append([(line["text"] if "text" in line else line["event"], line.get("grid")) for line in lines])
        run = fx.runs.read(tmp_path / "run.fx")
        grids = [(what, None if grid is None else tuple(grid)) for what, grid in texts[-1]]
        assert [(record.event or record.text, record.grid) for record in run] == grids
        if forced:
            assert len({tuple(line["token"]) for line in lines}) == 4
    assert texts[0] == texts[1]


def test_output_is_the_same_to_the_byte(lines):
    """What is printed without captures and handlers, which native code may format."""

    def f(x):
        return call(k_loops, x, **BLOCKS)

    direct = lines(fx.jit(f), X)
    with _jax.with_kernel_options(logs_simulated=True):
        assert lines(fx.jit(f), X) == direct


def test_kernels_in_loops_branches_and_regions():
    """A logged kernel in `scan`, `cond`, nested `jit` and `shard_map`, and several in one program."""

    def once(x):
        return call(k_straight, x, **BLOCKS)

    @jax.jit
    def nested(x):
        return once(once(x))

    def f(x):
        x, _ = jax.lax.scan(lambda c, i: (jax.lax.cond(i > 0, nested, lambda c: c, c), None), x, jnp.arange(2))
        return x

    assert logged(fx.jit(f), X) == seen(fx.jit(f), X)
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    both = jnp.concatenate([X, X + 10])
    for check in (True, False):
        region = jax.shard_map(once, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check)
        try:
            direct = seen(fx.jit(region), both)
        except ValueError:
            continue  # JAX does not take such a kernel under its check
        result, records = logged(fx.jit(region), both)
        # One log has one place in the order, so that the effects of a device come together.
        assert (result, sorted(records, key=_device_of)) == (direct[0], sorted(direct[1], key=_device_of))
        assert records == sorted(records, key=_device_of)


def _device_of(shown):
    return shown[-2]


def test_aot_and_export():
    """A program that is compiled ahead or exported brings its log's records as any other."""

    @fx.jit
    def f(x):
        return call(k_straight, x, **BLOCKS)

    direct = seen(f, X)
    with _jax.with_kernel_options(logs_simulated=True):
        compiled = f.lower(X).compile()
        exported = fx.deserialize(fx.export(f)(X).serialize())
    assert seen(compiled, X) == direct
    assert seen(exported.call, X) == direct
