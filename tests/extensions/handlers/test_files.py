"""The handler that writes CSV files, and the paths of files."""

from __future__ import annotations

import json
import logging
import time

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.extensions.handlers.common import Point, read_csv


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
    """With its columns, whatever fields come."""
    path = tmp_path / "run.csv"
    step = fx.jit(lambda x: fx.log("step", i=x, half=x / 2))
    handled(fx.CsvHandler(path, append=True), step, 1)
    handled(fx.CsvHandler(path, append=True), step, 3)
    handled(fx.CsvHandler(path, append=True), fx.jit(lambda x: fx.log("end", other=x)), 4)
    rows = [(row["event"], row["i"], row["half"], row["fields"]) for row in read_csv(path)]
    assert rows == [("step", "1", "0.5", ""), ("step", "3", "1.5", ""), ("end", "", "", '{"other": 4}')]


# Paths


@pytest.mark.parametrize("make", [fx.JsonLinesHandler, fx.CsvHandler])
def test_wrong_path_is_the_systems_error_at_once(make, tmp_path):
    """A path that cannot be written is an error when the handler is made, and leaves nothing behind."""
    with pytest.raises(FileNotFoundError, match="missing"):
        make(tmp_path / "missing" / "file")
    with pytest.raises(IsADirectoryError):
        make(tmp_path)
    with pytest.raises(TypeError):
        make(None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [fx.JsonLinesHandler, fx.CsvHandler])
def test_path_may_be_text_and_replaces_what_was_there(make, tmp_path):
    """A path is a string or a `Path`, and a file that was there is gone."""
    path = tmp_path / "file"
    path.write_text("before")
    make(str(path)).close()
    assert b"before" not in path.read_bytes()
