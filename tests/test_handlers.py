"""Handlers: what they keep, what they write, and when they get it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import logging
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

import effects as fx
from effects.handlers import _columns, jsonl
from effects.handlers import list as list_handler
from tests.helpers import run_python

MILLION = 1_000_000


@pytest.fixture
def handled():
    """`handled(handler, f, *args)` calls `f` with the handler added, and returns it when it has all and is closed."""

    def run(handler, f, *args, effects=None):
        token = fx.add_handler(handler, effects)
        try:
            f(*args)
            fx.effects_barrier(timeout=120)
        finally:
            fx.remove_handler(token)
        return handler

    return run


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: jax.Array
    b: jax.Array


def _loop(body, n):
    """A program that calls `body` with the numbers below `n`."""
    return fx.jit(lambda: jax.lax.fori_loop(0, n, lambda i, _: body(i) and None, None))


# In memory


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


def test_list_handler_reads_nothing_in_the_drain():
    """What the handler is given it keeps as it is."""
    handler = fx.ListHandler()
    given = object()
    handler.handle_many(given)
    assert handler._chunks == [given] and handler._chunks[0] is given


def test_list_handler_keeps_all_effects_as_records(handled):
    """Prints, logs and callbacks are there in program order, and the list of records is made once."""

    def program(x):
        fx.print("x = {}", x)
        fx.log("step", x=x)
        fx.callback(lambda x: None, None, x)

    handler = handled(fx.ListHandler(), fx.jit(program), 1)
    records = handler.records
    assert [record.effect for record in records] == ["print", "log", "callback"] and len(handler) == 3
    assert handler.records is records
    handler.clear()
    assert handler.records == [] and len(handler) == 0


def test_list_handler_shows_records_that_came_since(handled):
    """Records that come later are there when they are asked for again, and so are their columns."""
    handler = fx.ListHandler()
    program = fx.jit(lambda x: fx.log("step", x=x))
    for i in range(3):
        handled(handler, program, i)
        assert [int(record.fields["x"]) for record in handler.records] == list(range(i + 1))
        assert handler.columns("step")["x"].tolist() == list(range(i + 1))


@pytest.mark.parametrize("effects", [None, "log"], ids=["all effects", "logs"])
def test_columns_of_several_sites_are_in_program_order(handled, effects):
    """Events of one name from several lines are one column, in the order in which they came, with others between."""

    def body(i):
        fx.log("step", i=2 * i)
        fx.log("other")
        fx.print("{}", i)
        fx.log("step", i=2 * i + 1)

    with fx.capture(suppress=True):
        handler = handled(fx.ListHandler(), _loop(body, 5000), effects=effects)
    np.testing.assert_array_equal(handler.columns("step")["i"], np.arange(10000))
    assert handler.columns("other") == {}


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

    columns = handled(fx.ListHandler(), _loop(body, 2)).columns("event")
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


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, fx.jit], ids=["eager", "jax.jit", "fx.jit"])
def test_columns_whatever_runs_the_program(handled, jit):
    """Columns are the same for programs of `fx.jit`, of `jax.jit`, and eagerly."""

    def program(x):
        for i in range(3):
            fx.log("event", x=x + i)

    columns = handled(fx.ListHandler(), jit(program), jnp.float32(1)).columns("event")
    assert columns["x"].tolist() == [1, 2, 3]


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


def test_columns_of_fields_that_differ(handled):
    """An event whose fields differ in name or shape has no columns, and the error says where; its records are there."""

    def program(x):
        fx.log("shape", x=x)
        fx.log("shape", x=x[0])
        fx.log("name", x=x)
        fx.log("name", y=x)

    handler = handled(fx.ListHandler(), fx.jit(program), jnp.ones(3))
    with pytest.raises(
        ValueError, match=rf"`x`\[3\], and at {re.escape(__file__)}:\d+ with `x`\. .*names of their own"
    ):
        handler.columns("shape")
    with pytest.raises(ValueError, match=r"with the fields `x`\[3\], and at .* with `y`\[3\]\."):
        handler.columns("name")
    assert len(handler.records) == 4


def test_columns_of_an_event_that_has_not_come(handled):
    """A wrong event is an error that names those that have come."""
    handler = handled(fx.ListHandler(), fx.jit(lambda: fx.log("step")))
    with pytest.raises(ValueError, match="No record of the event 'stop' has come; events that have: 'step'"):
        handler.columns("stop")


# JSON lines


def _read_lines(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_json_lines_have_all_that_a_record_has(handled, tmp_path, capsys):
    """Each effect is an object on a line of its own, with what is needed to put several files in order."""

    def program(x):
        fx.print("x = {} {k}", x, k="é")
        fx.log("step", level=logging.WARNING, loss=x, name_="a")
        fx.callback(_take, None, x)

    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path), fx.jit(program), 0.5)
    printed, logged, called = _read_lines(path)
    line = program.__code__.co_firstlineno
    common = {"device": 0, "process": 0, "thread": logged["thread"], "lane": []}
    stream, epoch = logged["token"][:2]
    assert stream >> 8 == logged["thread"]
    for number, record in enumerate((printed, logged, called)):
        where = {"file": __file__, "line": line + 1 + number, "function": program.__qualname__}
        assert record.items() >= {**common, "token": [stream, epoch, 0, number], "where": where}.items()
        for key in (*common, "token", "where"):
            del record[key]
    assert printed == {
        "effect": "print", "fmt": "x = {} {k}", "text": "x = 0.5 é", "args": [0.5], "fields": {"k": "é"},
    }  # fmt: skip
    assert logged == {
        "effect": "log", "event": "step", "level": 30, "args": [], "fields": {"loss": 0.5, "name_": "a"},
    }  # fmt: skip
    assert called == {"effect": "callback", "text": "_take(0.5)", "args": [0.5], "fields": {}}


def _take(x):
    pass


def test_json_lines_of_every_value(handled, tmp_path):
    """What JSON has no word for has one, and every line is valid JSON."""
    fields = {
        "nan": jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1.5]),
        "scalar": jnp.float32(jnp.nan),
        "half": jnp.array([0.5, jnp.inf], jnp.bfloat16),
        "tiny": jnp.array(0.5, jnp.float8_e4m3fn),
        "narrow": jnp.array([-2, 1], jnp.int4),
        "z": jnp.array([1 + 2j, jnp.inf]),
        "yes": jnp.array([True, False]),
        "matrix": jnp.arange(4).reshape(2, 2),
        "nothing": jnp.zeros((2, 0)),
        "point": Point(jnp.int32(1), None),
        "layer": Layer(jnp.int32(1), jnp.float32(jnp.inf)),
        "tree": {"a": [jnp.int32(1), ()]},
    }
    static = {
        "b": b"\x00\xff",
        "large": 2**70,
        "inf": float("-inf"),
        "c": 1 - 2j,
        "s": "a\nb\udc80",
        "g": np.float64(0.1),
    }
    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path, fsync=True), fx.jit(lambda fields: fx.log("event", **fields, **static)), fields)
    (record,) = _read_lines(path)
    assert record["fields"] == {
        "nan": ["NaN", "Infinity", "-Infinity", 1.5],
        "scalar": "NaN",
        "half": [0.5, "Infinity"],
        "tiny": 0.5,
        "narrow": [-2, 1],
        "z": [[1.0, 2.0], ["Infinity", 0.0]],
        "yes": [True, False],
        "matrix": [[0, 1], [2, 3]],
        "nothing": [[], []],
        "point": [1, None],
        "layer": {"w": 1, "b": "Infinity"},
        "tree": {"a": [1, []]},
        "b": "00ff",
        "large": 2**70,
        "inf": "-Infinity",
        "c": [1.0, -2.0],
        "s": "a\nb\udc80",
        "g": 0.1,
    }


def test_json_lines_are_in_the_file_after_a_barrier(tmp_path):
    """What is visible at a barrier is in the file, before the handler is removed."""
    path = tmp_path / "run.jsonl"
    token = fx.add_handler(fx.JsonLinesHandler(path))
    program = _loop(lambda i: fx.log("step", i=i), 100)
    for call in range(3):
        program()
        fx.effects_barrier(timeout=120)
        assert [record["fields"]["i"] for record in _read_lines(path)] == [*range(100)] * (call + 1)
    fx.remove_handler(token)


@pytest.mark.parametrize("fsync", [False, True])
def test_json_lines_are_synced_on_request_only(handled, tmp_path, monkeypatch, fsync):
    """With `fsync` every batch is put on the disk after it has been written."""
    synced = []
    monkeypatch.setattr(jsonl.os, "fsync", lambda file: synced.append(len(_read_lines(path))))
    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path, fsync=fsync), fx.jit(lambda x: fx.log("step", x=x)), 1)
    assert synced == ([1] if fsync else [])


def test_json_lines_of_lanes(handled, tmp_path):
    """Each lane is a line, and says which it is."""
    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path), fx.jit(jax.vmap(lambda x: fx.log("step", x=x))), jnp.arange(3))
    assert [(record["lane"], record["fields"]["x"]) for record in _read_lines(path)] == [([0], 0), ([1], 1), ([2], 2)]


class Unprintable:
    """A pytree that cannot be shown."""

    def __init__(self, x):
        self.x = x

    def __str__(self):
        raise RuntimeError("cannot be shown")


jax.tree_util.register_pytree_node(
    Unprintable, lambda tree: ((tree.x,), None), lambda _, children: Unprintable(*children)
)


def test_json_lines_of_the_others_when_one_cannot_be_written(handled, tmp_path):
    """A record that cannot be shown is an error at the barrier, and keeps none of the others out of the file."""

    def program(x):
        fx.log("before", x=x)
        fx.callback(lambda tree: None, None, Unprintable(x))
        fx.log("after", x=Unprintable(x))

    path = tmp_path / "run.jsonl"
    token = fx.add_handler(fx.JsonLinesHandler(path))
    fx.jit(program)(1)
    with pytest.raises(fx.EffectError, match="cannot be shown"):
        fx.effects_barrier(timeout=120)
    fx.remove_handler(token)
    assert [record["event"] for record in _read_lines(path)] == ["before", "after"]


# NumPy files


def test_npz_holds_a_million_records_as_columns(handled, tmp_path):
    """Each field of each event is an array, and each event has the places of its records in program order."""

    @fx.jit
    def train(loss):
        def step(loss, i):
            fx.log("step", i=i, loss=loss, half=loss.astype(jnp.bfloat16))
            return loss + 0.5, None

        loss = jax.lax.scan(step, loss, jnp.arange(MILLION))[0]
        fx.log("end", loss=loss)

    path = tmp_path / "run.npz"
    handled(fx.NpzHandler(path), train, 0.0, effects="log")
    with np.load(path, allow_pickle=False) as arrays:
        assert set(arrays) == {"step/i", "step/loss", "step/half", "step/token", "end/loss", "end/token"}
        loss = np.arange(MILLION) / 2
        np.testing.assert_array_equal(arrays["step/i"], np.arange(MILLION))
        np.testing.assert_array_equal(arrays["step/loss"], loss)
        np.testing.assert_array_equal(arrays["step/half"], loss.astype(ml_dtypes.bfloat16).astype(np.float32))
        assert arrays["end/loss"].tolist() == [MILLION / 2]
        token = arrays["step/token"]
        assert token.dtype == np.uint32 and token.shape == (MILLION, 4)
        np.testing.assert_array_equal(token[:, 3], np.arange(MILLION))
        assert (token[:, :3] == arrays["end/token"][0, :3]).all() and arrays["end/token"][0, 3] == MILLION


def test_npz_widens_types_that_numpy_lacks(handled, tmp_path):
    """Every type is there when the file is read without anything but NumPy, with its values."""
    fields = {
        "bfloat16": jnp.array([0.1], jnp.bfloat16), "int4": jnp.array([-8, 7], jnp.int4),
        "uint2": jnp.array(3, jnp.uint2), "float8": jnp.array(0.5, jnp.float8_e5m2), "bool": jnp.array(True),
        "complex64": jnp.array(1 + 2j),
    }  # fmt: skip
    static = {"word": "é", "bytes": b"ab", "large": 2**70, "number": 3}
    path = tmp_path / "run.npz"
    handled(fx.NpzHandler(path), fx.jit(lambda fields: fx.log("event", **fields, **static)), fields)
    with np.load(path, allow_pickle=False) as arrays:
        read = {name.removeprefix("event/"): array for name, array in arrays.items()}
    assert {name: read[name].dtype.name for name in fields} == {
        "bfloat16": "float32", "int4": "int8", "uint2": "uint8", "float8": "float32", "bool": "bool",
        "complex64": "complex64",
    }  # fmt: skip
    for name, value in fields.items():
        np.testing.assert_array_equal(read[name][0], np.asarray(value).astype(read[name].dtype))
    assert {name: read[name].tolist() for name in static} == {
        "word": ["é"], "bytes": [b"ab"], "large": [str(2**70)], "number": [3],
    }  # fmt: skip


def test_npz_is_written_by_flush_too(handled, tmp_path):
    """A file that is flushed holds what has come so far; before, it is there and empty. Prints are not kept."""
    path = tmp_path / "run.npz"
    handler = fx.NpzHandler(path)
    with np.load(path) as arrays:
        assert list(arrays) == []
    token = fx.add_handler(handler)
    program = fx.jit(jax.vmap(lambda x: [fx.log("step", x=x), fx.print("{}", x)]))
    with fx.capture(suppress=True):
        for i in range(3):
            program(jnp.arange(2) + i)
            fx.effects_barrier(timeout=120)
            handler.flush()
            with np.load(path) as arrays:
                assert set(arrays) == {"step/x", "step/token"}
                assert arrays["step/x"].tolist() == [0, 1, 1, 2, 2, 3][: 2 * (i + 1)]
    fx.remove_handler(token)
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]


def test_npz_of_many_small_parts(tmp_path, monkeypatch):
    """Records that come one by one are gathered into larger parts, and stay in order."""
    monkeypatch.setattr(_columns, "_SMALL", 4)
    path = tmp_path / "run.npz"
    handler = fx.NpzHandler(path)
    with fx.capture() as records:
        _loop(lambda i: fx.log("step", i=i), 11)()
    for record in records:
        handler.handle(record)
    assert len(handler._tables["step"]._parts) == 2 + 3
    handler.close()
    with np.load(path) as arrays:
        assert arrays["step/i"].tolist() == list(range(11))


def test_npz_refuses_fields_that_differ_and_keeps_the_others(tmp_path):
    """Records whose fields do not fit those before are an error at the barrier; all others are in the file."""

    def program(x):
        fx.log("step", x=x)
        fx.log("step", x=x[0])
        fx.log("step", x=x + 1)
        fx.log("other", x=x[0])

    path = tmp_path / "run.npz"
    token = fx.add_handler(fx.NpzHandler(path))
    fx.jit(program)(jnp.zeros(2))
    with pytest.raises(fx.EffectError, match="rows of one table") as caught:
        fx.effects_barrier(timeout=120)
    assert isinstance(caught.value.__cause__, ValueError)
    fx.remove_handler(token)
    with np.load(path) as arrays:
        assert arrays["step/x"].tolist() == [[0, 0], [1, 1]] and arrays["other/x"].tolist() == [0]


# CSV


def _read_csv(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_line_for_each_log(handled, tmp_path):
    """The first record names the columns; numbers and strings are themselves, everything else is JSON."""

    @fx.jit
    def program(x):
        fx.print("not a log")
        fx.log(
            "step", i=x, half=x.astype(jnp.bfloat16) / 2, a=jnp.array([1.5, jnp.nan]), s='comma, "quote"\nline', n=None
        )
        fx.log("step", level=logging.ERROR, i=-x, z=1j, b=b"\xff", p=Point(x, None))

    path = tmp_path / "run.csv"
    with fx.capture(suppress=True):
        handled(fx.CsvHandler(path), program, 1)
    first, second = _read_csv(path)
    assert {**first} == {
        "event": "step", "level": "20", "device": "0", "lane": "[]", "i": "1", "half": "0.5", "a": '[1.5, "NaN"]',
        "s": 'comma, "quote"\nline', "n": "", "fields": "",
    }  # fmt: skip
    assert {**second, "fields": json.loads(second["fields"])} == {
        "event": "step", "level": "40", "device": "0", "lane": "[]", "i": "-1", "half": "", "a": "", "s": "", "n": "",
        "fields": {"b": "ff", "p": [1, None], "z": [0.0, 1.0]},
    }  # fmt: skip


def test_csv_of_lanes_in_order(handled, tmp_path):
    """Each lane is a line, and says which it is."""
    path = tmp_path / "run.csv"
    program = fx.jit(jax.vmap(lambda x: jax.lax.fori_loop(0, 2, lambda i, _: fx.log("step", i=i, x=x), None)))
    handled(fx.CsvHandler(path), program, jnp.arange(2))
    rows = [(row["lane"], row["i"], row["x"]) for row in _read_csv(path)]
    assert rows == [("[0]", "0", "0"), ("[1]", "0", "1"), ("[0]", "1", "0"), ("[1]", "1", "1")]


# Console


def _console():
    return Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)


def test_console_shows_a_line_for_each_record(handled):
    """Level, event, fields and place are on one line, however narrow the console; what looks like markup is text."""

    def program(x):
        fx.log("[bold]step", level=logging.WARNING, loss=x, matrix=jnp.zeros((2, 2)))
        fx.log("custom", level=25)
        fx.print("x = {}", x)

    console = Console(file=io.StringIO(), width=40)
    with fx.capture(suppress=True):
        handled(fx.ConsoleHandler(console), fx.jit(jax.vmap(program)), jnp.array([0.5]))
    line = program.__code__.co_firstlineno
    assert console.file.getvalue().splitlines() == [
        f"WARNING  [bold]step loss=0.5 matrix=[[0. 0.]  [0. 0.]] lane=(0,) test_handlers.py:{line + 1}",
        f"Level 25 custom lane=(0,) test_handlers.py:{line + 2}",
        f"print    x = 0.5 lane=(0,) test_handlers.py:{line + 3}",
    ]


def test_console_colours_levels(handled):
    """Levels differ in colour."""
    console = _console()

    def program():
        fx.log("fine", level=logging.INFO)
        fx.log("bad", level=logging.ERROR)

    handled(fx.ConsoleHandler(console), fx.jit(program))
    fine, bad = console.file.getvalue().splitlines()
    assert fine.startswith("\x1b[34mINFO") and bad.startswith("\x1b[1;31mERROR")


def test_console_is_standard_output_by_default(handled, capsys):
    """Without a console of the user's, lines go to the standard output."""
    handled(fx.ConsoleHandler(), fx.jit(lambda: fx.log("step")))
    assert capsys.readouterr().out.startswith("INFO     step test_handlers.py:")


# Paths


@pytest.mark.parametrize("make", [fx.JsonLinesHandler, fx.NpzHandler, fx.CsvHandler])
def test_wrong_path_is_the_systems_error_at_once(make, tmp_path):
    """A path that cannot be written is an error when the handler is made, and leaves nothing behind."""
    with pytest.raises(FileNotFoundError, match="missing"):
        make(tmp_path / "missing" / "file")
    with pytest.raises(IsADirectoryError):
        make(tmp_path)
    with pytest.raises(TypeError):
        make(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [fx.JsonLinesHandler, fx.NpzHandler, fx.CsvHandler])
def test_path_may_be_text_and_replaces_what_was_there(make, tmp_path):
    """A path is a string or a `Path`, and a file that was there is gone."""
    path = tmp_path / "file"
    path.write_text("before")
    make(str(path)).close()
    assert b"before" not in path.read_bytes()


# Adding and removing


def _step(x):
    fx.log("step", x=x)


def test_handler_sees_exactly_the_calls_while_it_is_there():
    """Calls before it was added are not seen, however late their records come; all before it is removed are."""
    program = fx.jit(lambda x: jax.lax.fori_loop(0, 100, lambda i, _: _step(x + i), None))
    seen = []
    for call in range(10):
        program(1000 * call)
        token = fx.add_handler(lambda record: seen.append(int(record.fields["x"])), effects="log")
        program(1000 * call + 500)
        fx.remove_handler(token)
    program(-1)
    fx.effects_barrier(timeout=120)
    assert seen == [1000 * call + 500 + i for call in range(10) for i in range(100)]


@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        (None, ["print", "log", "callback"]),
        ("log", ["log"]),
        (["print", "callback"], ["print", "callback"]),
        ([fx.registered_effects()["callback"]], ["callback"]),
        ((), []),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_handler_gets_the_effects_it_is_for(effects, expected, many):
    """A handler gets records of the effects that it was added for, in program order, one by one or many at once."""

    @fx.jit
    def program(x):
        def body(i, _):
            fx.print("{}", i)
            fx.log("step", i=i)
            fx.callback(_take, None, i)

        jax.lax.fori_loop(0, 3, body, None)

    seen = []

    class Many:
        def handle(self, record):
            raise AssertionError("it takes many")

        def handle_many(self, records):
            seen.extend(record.effect for record in records)

    with fx.capture(suppress=True):
        token = fx.add_handler(Many() if many else lambda record: seen.append(record.effect), effects)
        program(1)
        fx.remove_handler(token)
    assert seen == expected * 3


def test_one_handler_may_be_added_twice():
    """Each adding counts, and each is removed by what it returned."""
    seen = []
    first, second = fx.add_handler(seen.append, "log"), fx.add_handler(seen.append, "log")
    program = fx.jit(_step)
    program(1)
    fx.remove_handler(first)
    program(2)
    fx.remove_handler(second)
    program(3)
    fx.effects_barrier(timeout=120)
    assert [int(record.fields["x"]) for record in seen] == [1, 1, 2]


def test_handler_is_closed_when_it_is_removed():
    """`close` is called once, after the last record."""
    events = []

    class Closing:
        def handle(self, record):
            events.append(record.event)

        def close(self):
            events.append("closed")

    token = fx.add_handler(Closing())
    fx.jit(_step)(1)
    fx.remove_handler(token)
    assert events == ["step", "closed"]


def test_handlers_that_are_still_there_are_closed_when_the_process_ends(tmp_path):
    """At the end of the process handlers get what is outstanding, and write what they have kept."""
    code = f"""
import effects as fx, jax
for make in (fx.NpzHandler, fx.JsonLinesHandler, fx.CsvHandler):
    fx.add_handler(make({str(tmp_path)!r} + "/" + make.__name__), effects="log")
fx.jit(lambda: jax.lax.fori_loop(0, 10000, lambda i, _: fx.log("step", i=i), None))()
"""
    done = run_python(code)
    assert done.returncode == 0 and not done.stderr, done.stderr
    with np.load(tmp_path / "NpzHandler") as arrays:
        np.testing.assert_array_equal(arrays["step/i"], np.arange(10000))
    assert [record["fields"]["i"] for record in _read_lines(tmp_path / "JsonLinesHandler")] == list(range(10000))
    assert [int(row["i"]) for row in _read_csv(tmp_path / "CsvHandler")] == list(range(10000))


@pytest.mark.parametrize("many", [False, True])
def test_handler_that_raises_is_reported_once(many):
    """Its first error is raised at the barrier with its cause; it and the others get all records that follow."""
    seen, others = [], []

    class Raising:
        def handle(self, record):
            self.handle_many([record])

        def handle_many(self, records):
            seen.extend(int(record.fields["x"]) for record in records)
            raise KeyError("wrong")

    handler = Raising()
    raising = fx.add_handler(handler if many else handler.handle, "log")
    after = fx.add_handler(lambda record: others.append(int(record.fields["x"])), "log")
    program = fx.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, _: _step(x + i), None))
    program(0)
    with pytest.raises(fx.EffectError, match="handler .*Raising.* raised KeyError.*reported once") as caught:
        fx.effects_barrier(timeout=120)
    assert isinstance(caught.value.__cause__, KeyError)
    program(10)
    fx.effects_barrier(timeout=120)
    fx.remove_handler(raising)
    fx.remove_handler(after)
    assert seen == others == [0, 1, 2, 10, 11, 12]


def test_handler_may_use_effects_itself():
    """A handler may call jitted functions that log; what they log comes to handlers too, without end or hang."""
    seen = []
    nested = fx.jit(lambda x: fx.log("nested", x=x))

    def handler(record):
        seen.append((record.event, int(record.fields["x"])))
        if record.event == "step":
            nested(record.fields["x"] + 10)

    token = fx.add_handler(handler, "log")
    fx.jit(_step)(1)
    fx.effects_barrier(timeout=120)  # for the handler, and then for what the handler issued
    fx.effects_barrier(timeout=120, all_threads=True)
    fx.remove_handler(token)
    assert seen == [("step", 1), ("nested", 11)]


@pytest.mark.parametrize("handler", [3, None, "file", object()])
def test_handler_without_the_needed_method_is_refused(handler):
    """What can neither be called nor has a method `handle` is an error when it is added."""
    with pytest.raises(TypeError, match=r"no method `handle` and cannot be called\. .* `handle\(record\)`"):
        fx.add_handler(handler)


def test_handler_of_an_unknown_effect_is_refused():
    """A handler for an effect that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="'nothing' is not a registered effect.*log"):
        fx.add_handler(print, "nothing")


def test_handler_is_removed_once():
    """Removing what is not there is an error that says what to pass."""
    token = fx.add_handler(print)
    fx.remove_handler(token)
    for wrong in (token, print, None):
        with pytest.raises(ValueError, match=r"no handler that is there\. A handler is removed once"):
            fx.remove_handler(wrong)


def test_texts_of_handlers_have_three_sentences():
    """What happened, which rule it broke, what to do."""
    for text in (list_handler.MSG_NO_EVENT, _columns.MSG_COLUMNS):
        assert len(re.findall(r"\.(?: [A-Z]|$)", text.replace("fx.", ""))) == 3, text


# What a handler may do

_F32 = jax.ShapeDtypeStruct((), jnp.float32)
_logs = fx.jit(lambda x: fx.log("nested", x=x))
_calls = fx.jit(lambda x: fx.callback(lambda x: None, None, x))
_waits = fx.jit(lambda x: fx.callback(lambda x: x + 1, _F32, x))


def _captures(x):
    with fx.capture(suppress=True) as records:
        _logs(x)
    assert [record.event for record in records] == ["nested"]


@pytest.mark.parametrize("via", ["handler", "logging"])
@pytest.mark.parametrize("use", [_waits, _calls, _captures], ids=["waits", "calls", "captures"])
def test_handler_may_use_effects(use, via):
    """A handler, ours or one of Python's logging, may call programs with effects, and wait for them."""
    seen = []

    def handle(x):
        if x < 10:
            seen.append(x)
            use(jnp.float32(x + 10))

    class PythonHandler(logging.Handler):
        def emit(self, record):
            handle(float(record.x))

    logger, python_handler = logging.getLogger("effects"), PythonHandler()
    program = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("outer", x=i.astype(jnp.float32)), None))
    if via == "handler":
        token = fx.add_handler(lambda record: handle(float(record.fields["x"])), effects="log")
    else:
        before = logger.level
        logger.addHandler(python_handler)
        logger.setLevel(logging.INFO)
    try:
        program(5)
        fx.effects_barrier(timeout=60)
    finally:
        if via == "handler":
            fx.remove_handler(token)
        else:
            logger.removeHandler(python_handler)
            logger.setLevel(before)
    assert seen == [0, 1, 2, 3, 4]


def test_barrier_waits_for_what_a_handler_issues(lines):
    """What a handler prints through a program of its own is out when the barrier returns."""
    inner = fx.jit(lambda x: fx.print("nested {}", x))
    token = fx.add_handler(lambda record: inner(record.fields["x"]), effects="log")
    try:
        assert lines(fx.jit(lambda x: fx.log("outer", x=x)), 1) == ["nested 1"]
    finally:
        fx.remove_handler(token)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_handler_that_fails_however_stops_nothing(error, lines):
    """What a handler raises keeps no record from the others, nor from the output; nor does one that cannot be shown."""

    class Bad:
        def __repr__(self):
            raise error

        def handle(self, record):
            raise error

    def program(x):
        fx.print("{}", x)
        fx.log("event", x=x)
        fx.callback(lambda x: None, None, x)

    program = fx.jit(program)
    seen = []
    tokens = [fx.add_handler(Bad()), fx.add_handler(lambda record: seen.append(record.effect))]
    try:
        with pytest.raises(fx.EffectError) as info:
            lines(program, 1)
    finally:
        for token in tokens:
            fx.remove_handler(token)
    assert type(info.value.__cause__) is error
    assert seen == ["print", "log", "callback"]


def test_class_is_no_handler():
    """A class makes handlers and is none; the message says what one is."""
    with pytest.raises(TypeError, match="method `handle`"):
        fx.add_handler(fx.ListHandler)
