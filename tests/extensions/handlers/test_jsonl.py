"""The handler that writes JSON lines."""

from __future__ import annotations

import logging
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import Layer, Point, loop, read_lines
from tests.internals import jsonl


def test_json_lines_have_all_that_a_record_has(handled, tmp_path, capsys):
    """Each effect is an object on a line of its own, with what is needed to put several files in order."""

    def program(x):
        fx.print("x = {} {k}", x, k="é")
        fx.log("step", level=logging.WARNING, loss=x, name_="a")
        fx.callback(_take, None, x)

    path, began = tmp_path / "run.jsonl", time.time()
    handled(fx.JsonLinesHandler(path), fx.jit(program), 0.5)
    printed, logged, called = read_lines(path)
    times = [record.pop("time") for record in (printed, logged, called)]
    in_order = [began, *times, time.time()]
    assert in_order == sorted(in_order)
    line = program.__code__.co_firstlineno
    common = {"device": 0, "process": 0, "thread": logged["thread"], "lane": []}
    stream, epoch = logged["token"][:2]
    assert stream >> 12 == logged["thread"]
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


TRACED = {  # what a program logs, and what is written
    "nan": (jnp.array([jnp.nan, jnp.inf, -jnp.inf, 1.5]), ["NaN", "Infinity", "-Infinity", 1.5]),
    "scalar": (jnp.float32(jnp.nan), "NaN"),
    "half": (jnp.array([0.5, jnp.inf], jnp.bfloat16), [0.5, "Infinity"]),
    "tiny": (jnp.array(0.5, jnp.float8_e4m3fn), 0.5),
    "narrow": (jnp.array([-2, 1], jnp.int4), [-2, 1]),
    "z": (jnp.array([1 + 2j, jnp.inf]), [[1.0, 2.0], ["Infinity", 0.0]]),
    "yes": (jnp.array([True, False]), [True, False]),
    "matrix": (jnp.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    "nothing": (jnp.zeros((2, 0)), [[], []]),
    "point": (Point(jnp.int32(1), None), [1, None]),
    "layer": (Layer(jnp.int32(1), jnp.float32(jnp.inf)), {"w": 1, "b": "Infinity"}),
    "tree": ({"a": [jnp.int32(1), ()]}, {"a": [1, []]}),
}
STATIC = {
    "b": (b"\x00\xff", "00ff"),
    "large": (2**70, 2**70),
    "inf": (float("-inf"), "-Infinity"),
    "c": (1 - 2j, [1.0, -2.0]),
    "s": ("a\nb\udc80", "a\nb\udc80"),
    "g": (np.float64(0.1), 0.1),
}


def test_json_lines_of_every_value(handled, tmp_path):
    """What JSON has no word for has one, and every line is valid JSON."""
    path = tmp_path / "run.jsonl"
    traced, static = ({name: value for name, (value, _) in fields.items()} for fields in (TRACED, STATIC))
    handled(fx.JsonLinesHandler(path, fsync=True), fx.jit(lambda traced: fx.log("event", **traced, **static)), traced)
    (record,) = read_lines(path)
    assert record["fields"] == {name: written for name, (_, written) in (TRACED | STATIC).items()}


def test_json_lines_are_in_the_file_after_a_barrier(tmp_path):
    """What is visible at a barrier is in the file, before the handler is removed."""
    path = tmp_path / "run.jsonl"
    token = fx.add_handler(fx.JsonLinesHandler(path))
    program = loop(lambda i: fx.log("step", i=i), 100)
    for call in range(3):
        program()
        fx.effects_barrier(timeout=120)
        assert [record["fields"]["i"] for record in read_lines(path)] == [*range(100)] * (call + 1)
    fx.remove_handler(token)


@pytest.mark.parametrize("fsync", [False, True])
def test_json_lines_are_synced_on_request_only(handled, tmp_path, monkeypatch, fsync):
    """With `fsync` every batch is put on the disk after it has been written."""
    synced = []
    monkeypatch.setattr(jsonl.os, "fsync", lambda file: synced.append(len(read_lines(path))))
    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path, fsync=fsync), fx.jit(lambda x: fx.log("step", x=x)), 1)
    assert synced == ([1] if fsync else [])


def test_json_lines_of_lanes(handled, tmp_path):
    """Each lane is a line, and says which it is."""
    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path), fx.jit(jax.vmap(lambda x: fx.log("step", x=x))), jnp.arange(3))
    assert [(record["lane"], record["fields"]["x"]) for record in read_lines(path)] == [([0], 0), ([1], 1), ([2], 2)]


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
    assert [record["event"] for record in read_lines(path)] == ["before", "after"]


def test_numbers_have_the_digits_of_their_type(handled, tmp_path):
    """A number of 32 bits is written as it is shown, and is the same when it is read as one."""
    x = jnp.array([20.74652, 1 / 3, 1e-30, 16777216])
    path = tmp_path / "run.jsonl"
    fields = {"x": x, "s": x[0], "half": x[:2].astype(jnp.float16), "z": x[:1] * 1j}
    handled(fx.JsonLinesHandler(path), fx.jit(lambda fields: fx.log("step", **fields)), fields)
    written = '"half": [20.75, 0.3333], "s": 20.74652, "x": [20.74652, 0.33333334, 1e-30, 16777216.0]'
    assert written in path.read_text()
    (record,) = read_lines(path)
    assert np.array(record["fields"]["x"], np.float32).tolist() == x.tolist()
    assert record["fields"]["z"] == [[0.0, 20.74652]]


def test_record_as_a_dictionary():
    """Values of Python's own, whatever the user gave."""

    def program(x):
        fx.print("{:.1f}", x)
        fx.log("step", x=x, whole=x.astype(int), many=jnp.stack([x, x]), nan=x * jnp.nan, tree={"a": (x, None)}, b=b"b")

    with fx.capture(suppress=True) as records:
        fx.jit(jax.vmap(program))(jnp.array([0.1]))
    printed, logged = [record.to_dict() for record in records]
    assert (printed["effect"], printed["fmt"], printed["text"], printed["args"]) == ("print", "{:.1f}", "0.1", [0.1])
    fields = logged["fields"]
    assert str(fields.pop("nan")) == "nan"
    assert fields == {"x": 0.1, "whole": 0, "many": [0.1, 0.1], "tree": {"a": [0.1, None]}, "b": b"b"}
    assert [type(fields["x"]), type(fields["whole"])] == [float, int]
    assert (logged["event"], logged["level"], logged["lane"], logged["device"]) == ("step", 20, (0,), 0)
    assert logged["where"] == {"file": __file__, "line": records[1].line, "function": records[1].where.function}
    assert logged["time"] == records[1].time >= printed["time"]
