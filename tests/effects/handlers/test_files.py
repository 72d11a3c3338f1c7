"""The handlers that write NumPy and CSV files, and the paths of files."""

from __future__ import annotations

import json
import logging
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import effects as fx
from tests.effects.handlers.common import Point, loop, read_csv
from tests.internals import _columns

MILLION = 1_000_000


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
        loop(lambda i: fx.log("step", i=i), 11)()
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
    first, second = read_csv(path)
    assert float(first.pop("time")) <= float(second.pop("time")) <= time.time()
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
    rows = [(row["lane"], row["i"], row["x"]) for row in read_csv(path)]
    assert rows == [("[0]", "0", "0"), ("[1]", "0", "1"), ("[0]", "1", "0"), ("[1]", "1", "1")]


def test_csv_lines_are_added_to_a_table_that_is_there(handled, tmp_path):
    """With its columns, whatever fields come. A file that is no such table is left alone."""
    path = tmp_path / "run.csv"
    step = fx.jit(lambda x: fx.log("step", i=x, half=x / 2))
    handled(fx.CsvHandler(path, append=True), step, 1)
    handled(fx.CsvHandler(path, append=True), step, 3)
    handled(fx.CsvHandler(path, append=True), fx.jit(lambda x: fx.log("end", other=x)), 4)
    rows = [(row["event"], row["i"], row["half"], row["fields"]) for row in read_csv(path)]
    assert rows == [("step", "1", "0.5", ""), ("step", "3", "1.5", ""), ("end", "", "", '{"other": 4}')]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"was asked to add lines to .*run.csv', whose first line is \['a', 'b'\]"):
        fx.CsvHandler(path, append=True)
    assert path.read_text() == "a,b\n1,2\n"


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
