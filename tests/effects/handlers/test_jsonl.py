"""The handler that writes JSON lines."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.handlers.common import Layer, Point, loop, read_lines
from tests.internals import jsonl


def test_json_lines_have_all_that_a_record_has(handled, tmp_path, capsys):
    """Each effect is an object on a line of its own, with what is needed to put several files in order."""

    def program(x):
        fx.print("x = {} {k}", x, k="é")
        fx.log("step", level=logging.WARNING, loss=x, name_="a")
        fx.callback(_take, None, x)

    path = tmp_path / "run.jsonl"
    handled(fx.JsonLinesHandler(path), fx.jit(program), 0.5)
    printed, logged, called = read_lines(path)
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
    (record,) = read_lines(path)
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
