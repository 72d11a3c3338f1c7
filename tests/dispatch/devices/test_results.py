"""What programs over several devices return is what they would without effects."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import hijax
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType

import effects as fx
from tests.dispatch.devices.meshes import mesh_over, on, plain, rows_of, shown

P = jax.P
F32, I32 = jnp.float32, jnp.int32


def _facts(array):
    return (
        np.asarray(array).tolist(),
        array.dtype,
        array.weak_type,
        array.sharding,
        array.format,
        array.committed,
        array.is_deleted(),
    )


X = np.arange(16, dtype=np.float32).reshape(4, 4)
HERE = jax.sharding.SingleDeviceSharding


def _options(case):
    """Options of `jit` and what the program is called with."""
    rows = rows_of()
    whole = jax.NamedSharding(mesh_over(), P())
    outs = lambda first, rest: {"twice": first, "weak": (rest, [rest, None]), "same": rest}  # noqa: E731
    on_one = HERE(jax.devices()[2])
    return {
        "numpy": ({}, X),
        "device": ({}, on(2, X)),
        "sharded": ({}, jax.device_put(X, rows)),
        "in_shardings": ({"in_shardings": rows}, X),
        "out_shardings": ({"out_shardings": outs(rows, whole)}, X),
        "permuted": ({}, jax.device_put(X, jax.NamedSharding(mesh_over(2, 0, 3, 1), P(None, "x")))),
        "pinned_host": ({"out_shardings": outs(rows_of(memory_kind="pinned_host"), whole)}, jax.device_put(X, rows)),
        "unpinned_host": ({"out_shardings": outs(rows_of(memory_kind="unpinned_host"), whole)}, X),
        "columns": ({"out_shardings": outs(Format(Layout((0, 1)), rows), whole)}, X),
        "columns in": ({}, jax.device_put(X, Format(Layout((0, 1)), on_one))),
        "donated": ({"donate_argnums": 0}, on(1, X)),
        "donated and sharded": ({"donate_argnums": 0}, jax.device_put(X, rows)),
        "donated and kept": ({"donate_argnums": 0, "keep_unused": True}, jax.device_put(X, whole)),
    }[case]


CASES = ["numpy", "device", "sharded", "in_shardings", "out_shardings", "permuted", "pinned_host", "unpinned_host"]


CASES += ["columns", "columns in", "donated", "donated and sharded", "donated and kept"]


@pytest.mark.parametrize("case", CASES)
def test_results_are_what_they_are_without_effects(case, lines):
    """Values, types, shardings, layouts, memories and donation; the second call takes the fast path."""
    found = []

    def call(jitted):
        for _ in range(2):
            options, x = _options(case)
            results = (jitted(plain, **options) if jitted is jax.jit else jitted(shown, **options))(x)
            given = (x.is_deleted(),) if isinstance(x, jax.Array) else ()
            found.append((jax.tree.structure(results), [_facts(array) for array in jax.tree.leaves(results)], given))

    call(jax.jit)
    assert lines(call, fx.jit) == ["120.0", "end"] * 2
    assert found[2:] == found[:2]


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_layouts_that_the_compiler_chooses(lines):
    """The same with and without effects, of arguments and results; donated too."""
    shape = jax.ShapeDtypeStruct((4, 6), F32, sharding=rows_of())
    found = []

    def call(jit, f):
        auto = Format(Layout.AUTO)
        compiled = jit(f, in_shardings=auto, out_shardings=auto, donate_argnums=0).lower(shape).compile()
        (given,), _ = compiled.input_formats
        x = jax.device_put(np.arange(24, dtype=np.float32).reshape(4, 6), given)
        results = compiled(x)
        formats = jax.tree.map(str, (compiled.input_formats, compiled.output_formats))
        found.append((formats, [_facts(array) for array in jax.tree.leaves(results)], x.is_deleted()))

    call(jax.jit, plain)
    assert lines(call, fx.jit, shown) == ["276.0", "end"]
    assert found[0] == found[1]


def test_explicit_shardings_of_results(lines):
    """Types that say how a value is sharded are the same with effects, and so are the results."""
    with jax.set_mesh(mesh_over(kind=AxisType.Explicit)):
        x = jax.device_put(X, P("x"))
        facts = []
        for jitted in (jax.jit(plain), fx.jit(shown)):
            types = jax.tree.map(str, jax.eval_shape(jitted, x))
            lines(lambda jitted=jitted: facts.append(jax.tree.map(_facts, jitted(x))))
            facts[-1] = (types, facts[-1])
        assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("control", "lanes"),
    [("loop", "whole"), ("asking", "whole"), ("branch", "whole"), ("asking", "sharded"), ("branch", "sharded")],
)
def test_lanes_that_differ_and_are_sharded(control, lanes, lines):
    """Where types say how the lanes' values are sharded, they do so still. Without effects JAX refuses the first branch
    and any `fori_loop` of lanes that are sharded."""

    def lane(n, x):
        def doubled(i, x):
            fx.print("{} of {}", i, n)
            return x * 2

        def goes_on(state):
            fx.print("{} of {}", state[0], n)
            return state[0] < n

        if control == "loop":
            return lax.fori_loop(0, n, doubled, x)
        if control == "branch":
            return lax.cond(n > 0, functools.partial(doubled, 0), lambda x: x, x)
        return lax.while_loop(goes_on, lambda state: (state[0] + 1, state[1] * 2), (n * 0, x))[1]

    of_n, of_x = (P("x"), P("x", None)) if lanes == "sharded" else (P(), P(None, "x"))
    with jax.set_mesh(mesh_over(kind=AxisType.Explicit)):
        n, x = jax.device_put(jnp.arange(4), of_n), jax.device_put(jnp.ones((4, 4)), of_x)
        results = []
        shown = lines(lambda: results.append(fx.jit(jax.vmap(lane))(n, x)))
        turns = {"loop": lambda n: n, "asking": lambda n: n + 1, "branch": lambda n: min(n, 1)}[control]
        assert shown == [f"{i} of {n}" for i in range(4) for n in range(4) if i < turns(n)]
        assert results[0].sharding == x.sharding
        doubled = [min(n, 1) if control == "branch" else n for n in range(4)]
        assert np.asarray(results[0])[:, 0].tolist() == [2**n for n in doubled]


def test_result_of_a_callback_goes_anywhere(lines):
    """It is an array like any other: on other meshes, on one device, in what runs eagerly, in NumPy."""
    shape = jax.ShapeDtypeStruct((4,), F32)
    asks = fx.jit(lambda x: fx.callback(lambda x: x + 1, shape, x))
    for x in (jnp.arange(4.0), on(3, jnp.arange(4.0)), jax.device_put(jnp.arange(4.0), rows_of())):
        answer = asks(x)
        assert np.asarray(answer).tolist() == [1, 2, 3, 4]
        for sharding in (rows_of(), jax.NamedSharding(mesh_over(2, 1), P("x")), HERE(jax.devices()[1])):
            moved = jax.device_put(answer, sharding)
            assert jax.jit(lambda x: x * 2)(moved).tolist() == [2, 4, 6, 8]
            assert lines(fx.jit(lambda x: fx.print("{}", x)), moved) == ["[1. 2. 3. 4.]"]
        assert float(jnp.sum(answer)) == 10


@pytest.mark.skipif(not hasattr(hijax, "Box"), reason="this JAX has no Box")
@pytest.mark.parametrize("effects", [False, True])
def test_boxes_are_changed_by_compiled_programs(effects):
    """The same with what `lower().compile()` returns, where the box is an argument."""
    box = hijax.Box(1.0)

    @fx.jit
    def f(box, x):
        if effects:
            fx.print("{}", x)
        box.set(box.get() + x)
        return 2 * x

    compiled = f.lower(box, 2.0).compile()
    with fx.capture() as records:
        assert [compiled(box, 2.0), compiled(box, 3.0)] == [4.0, 6.0]
    assert box.get() == 6.0
    assert [record.text for record in records] == ["2.0", "3.0"] * effects


@pytest.mark.skipif(not hasattr(hijax, "Box"), reason="this JAX has no Box")
@pytest.mark.parametrize("effects", [False, True])
def test_boxes_are_changed_by_calls(effects):
    """A function may change what is in one of JAX's experimental boxes, an argument or one that it closes over."""
    box, given = hijax.Box(1.0), hijax.Box(jnp.arange(3.0))

    @fx.jit
    def f(given, x):
        if effects:
            fx.print("{}", x)
        box.set(box.get() + x)
        given.set(given.get() * x)

    with fx.capture() as records:
        f(given, 2.0)
        f(given, 3.0)
    assert box.get() == 6.0 and given.get().tolist() == [0.0, 6.0, 12.0]
    assert [record.text for record in records] == ["2.0", "3.0"] * effects
