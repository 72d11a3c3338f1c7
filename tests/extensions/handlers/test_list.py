"""The handler that keeps records in memory, and the columns that it makes of them."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import Layer, Point, loop
from tests.internals import as_numpys

MILLION = 1_000_000


def test_list_handler_gets_a_million_records_of_a_scan_in_order(handled):
    """Everything that a scan of a million steps logs arrives, in order, with its values."""

    @fx.jit
    def train(loss):
        def step(loss, i):
            fx.log("step", i=i, loss=loss, odd=i % 2 == 1)
            return loss + 0.5, None

        return jax.lax.scan(step, loss, jnp.arange(MILLION))[0]

    handler = handled(fx.ListHandler(), train, 0.0)
    columns = handler.columns("step")
    assert len(handler) == MILLION
    assert {name: (column.dtype, column.shape) for name, column in columns.items()} == {
        "i": (np.dtype("int32"), (MILLION,)),
        "loss": (np.dtype("float32"), (MILLION,)),
        "odd": (np.dtype("bool"), (MILLION,)),
    }
    np.testing.assert_array_equal(columns["i"], np.arange(MILLION))
    np.testing.assert_array_equal(columns["loss"], np.arange(MILLION) / 2)
    np.testing.assert_array_equal(columns["odd"], np.arange(MILLION) % 2 == 1)


def test_list_handler_shows_records_that_came_since(handled):
    """Records of all effects are there in program order when they are asked for, and so are their columns. The list is
    made once."""

    def program(x):
        fx.print("x = {}", x)
        fx.log("step", x=x)
        fx.callback(lambda x: None, None, x)

    handler, program = fx.ListHandler(), fx.jit(program)
    for i in range(3):
        handled(handler, program, i)
        assert [record.effect for record in handler.records] == ["print", "log", "callback"] * (i + 1)
        assert handler.columns("step")["x"].tolist() == list(range(i + 1))
    assert handler.records is handler.records and len(handler) == 9
    handler.clear()
    assert handler.records == [] and len(handler) == 0


@pytest.mark.slow
@pytest.mark.parametrize("effects", [None, "log"], ids=["all effects", "logs"])
def test_columns_of_several_sites_are_in_program_order(handled, effects):
    """Events of one name from several lines are one column, in the order in which they came, with others between."""

    def body(i):
        fx.log("step", i=2 * i)
        fx.log("other")
        fx.print("{}", i)
        fx.log("step", i=2 * i + 1)

    with fx.capture(suppress=True):
        handler = handled(fx.ListHandler(), loop(body, 5000), effects=effects)
    np.testing.assert_array_equal(handler.columns("step")["i"], np.arange(10000))
    assert handler.columns("other") == {}


def _curves(columns, *names):
    """The values of a column by lane and device, each in order."""
    curves = {}
    for *key, value in zip(*(columns[name].tolist() for name in names), columns["x"].tolist(), strict=True):
        curves.setdefault(tuple(map(str, key)), []).append(value)
    return curves


STEPS = [0.0, 1.0, 2.0]


def _count(x):
    jax.lax.fori_loop(0, 3, lambda i, _: fx.log("event", x=x + i), None)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_columns_have_lanes_and_devices(handled, jit):
    """A curve can be drawn for each lane and each device: columns have them where records have."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    by_device = functools.partial(jax.shard_map, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
    places = [device.id for device in mesh.devices.flat]
    tens = jnp.arange(4.0) * 10
    cases = {
        (): (_count, 0.0, {(): STEPS}),
        ("lane",): (jax.vmap(_count), tens, {(f"{i}",): [10.0 * i + step for step in STEPS] for i in range(4)}),
        ("device",): (
            by_device(lambda x: _count(x[0])[None]),
            tens,
            {(f"{place}",): [10.0 * i + step for step in STEPS] for i, place in enumerate(places)},
        ),
        ("lane", "device"): (
            by_device(jax.vmap(jax.vmap(_count))),
            jnp.arange(8.0).reshape(4, 2) * 10,
            {
                (f"[0, {lane}]", f"{place}"): [10.0 * (2 * i + lane) + step for step in STEPS]
                for i, place in enumerate(places)
                for lane in range(2)
            },
        ),
    }
    for names, (f, x, expected) in cases.items():
        columns = handled(fx.ListHandler(), jit(f), x).columns("event")
        assert set(columns) == {"x", *names}
        assert _curves(columns, *names) == expected


VALUES = {
    "nothing": {},
    "scalars": {"i": jnp.int8(3), "x": jnp.float16(0.5), "z": jnp.complex64(1 + 2j)},
    "arrays": {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.array([True, False])},
    "narrow": {"n": jnp.array([1, -2], jnp.int4), "u": jnp.array(3, jnp.uint2), "h": jnp.array([0.5], jnp.bfloat16)},
    "no elements": {"none": jnp.zeros((0, 3)), "x": jnp.float32(1)},
    "no elements at all": {"none": jnp.zeros((0, 3))},
    "static": {"s": "text", "i": 7, "x": 0.25, "large": 2**70, "yes": True, "scalar": np.float64(0.1), "z": 1j},
}


@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "among others"])
@pytest.mark.parametrize("name", VALUES)
def test_columns_hold_what_was_logged(handled, name, mixed):
    """Of every type and shape, a column is the values below each other, whether or not other sites come between."""
    fields = VALUES[name]
    arrays = {key: value for key, value in fields.items() if isinstance(value, jax.Array)}

    @fx.jit
    def program(arrays):
        def body(i, _):
            fx.log("event", **{**fields, **arrays})
            if mixed:
                fx.log("other")

        jax.lax.fori_loop(0, 3, body, None)

    columns = handled(fx.ListHandler(), program, arrays).columns("event")
    assert set(columns) == set(fields)
    for key, value in fields.items():
        expected = np.stack([np.asarray(value)] * 3)
        assert columns[key].dtype == expected.dtype
        np.testing.assert_array_equal(columns[key], expected)


def test_columns_of_pytrees_are_named_by_path(handled):
    """A field that is a pytree has a column for each of its leaves."""

    def body(i):
        fx.log("event", layer=Layer(i, i + 1), point=Point(i, None), deep={"a": [i, {"b": i}]})

    columns = handled(fx.ListHandler(), loop(body, 2)).columns("event")
    assert {name: column.tolist() for name, column in columns.items()} == {
        "layer.w": [0, 1],
        "layer.b": [1, 2],
        "point.x": [0, 1],
        "deep.a.0": [0, 1],
        "deep.a.1.b": [0, 1],
    }


def test_columns_under_vmap_have_a_row_for_each_lane(handled):
    """Lanes are rows, in the order of their records; what all lanes share is in each."""

    def program(x):
        jax.lax.fori_loop(0, 2, lambda i, _: fx.log("event", i=i, x=x, s="same"), None)

    handler = handled(fx.ListHandler(), fx.jit(jax.vmap(program)), jnp.arange(6.0).reshape(3, 2))
    columns = handler.columns("event")
    assert columns["i"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(columns["x"], np.tile(np.arange(6.0).reshape(3, 2), (2, 1)))
    assert columns["s"].tolist() == ["same"] * 6
    assert [record.lane for record in handler.records] == [(0,), (1,), (2,)] * 2


def test_columns_of_a_record_larger_than_the_ring(handled):
    """An array that travels beside the ring is a row like any other."""
    n = fx.config.ring_bytes
    handler = handled(fx.ListHandler(), fx.jit(lambda x: fx.log("event", x=x)), jnp.arange(n))
    np.testing.assert_array_equal(handler.columns("event")["x"], np.arange(n)[None])


def test_columns_of_values_of_several_types(handled):
    """Numbers of several types become one that holds them; numbers beside text stay what they are."""

    def program(x):
        fx.log("numbers", x=x)
        fx.log("numbers", x=x.astype(jnp.bfloat16))
        fx.log("numbers", x=x.astype(jnp.float16))
        fx.log("both", x=1)
        fx.log("both", x="one")

    handler = handled(fx.ListHandler(), fx.jit(program), jnp.int32(3))
    assert handler.columns("numbers")["x"].tolist() == [3, 3, 3]
    assert handler.columns("both")["x"].tolist() == [1, "one"]


@pytest.mark.parametrize(
    ("dtype", "wider"),
    [("bfloat16", "float32"), ("float8_e5m2", "float32"), ("int4", "int8"), ("uint2", "uint8"), ("int32", "int32")],
)
def test_types_that_numpy_lacks_become_wider_ones(dtype, wider):
    """So that numbers of two such types are one column, and files keep them. Other objects become text."""
    column = np.asarray(jnp.array([0, 1], dtype))
    assert as_numpys(column).dtype == wider and as_numpys(column).tolist() == [0, 1]
    assert as_numpys(np.array([2**70, "é"], object)).tolist() == [str(2**70), "é"]


def test_columns_of_fields_that_differ(handled):
    """An event whose fields differ in name or shape has no columns, and the error says where; its records are there."""

    def program(x):
        fx.log("shape", x=x)
        fx.log("shape", x=x[0])
        fx.log("name", x=x)
        fx.log("name", y=x)
        fx.log("none")
        fx.log("none", x=x)

    handler = handled(fx.ListHandler(), fx.jit(program), jnp.ones(3))
    with pytest.raises(
        ValueError, match=rf"`x`\[3\], and at {re.escape(__file__)}:\d+ with `x`\. .*names of their own"
    ):
        handler.columns("shape")
    with pytest.raises(ValueError, match=r"with the fields `x`\[3\], and at .* with `y`\[3\]\."):
        handler.columns("name")
    with pytest.raises(ValueError, match=r"with the fields none, and at .* with `x`\[3\]\."):
        handler.columns("none")
    assert len(handler.records) == 6


def test_columns_of_an_event_that_has_not_come(handled):
    """A wrong event is an error that names those that have come."""
    handler = handled(fx.ListHandler(), fx.jit(lambda: fx.log("step")))
    with pytest.raises(ValueError, match="No record of the event 'stop' has come; events that have: 'step'"):
        handler.columns("stop")
