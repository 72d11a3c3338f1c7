"""The handler that writes tables of Parquet."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import Point, loop
from tests.helpers import ROOT

pytest.importorskip("pyarrow", reason="pyarrow, of the extra `parquet`, is not installed")
import pyarrow.parquet as pq


def _rows(path, *columns):
    return pq.read_table(path, columns=list(columns) or None).to_pylist()


def _numbers(path):
    return pq.read_table(path / "event=step")["i"].to_pylist()


def test_parquet_has_a_table_for_each_event(handled, tmp_path):
    """Its columns are the fields with their types, and what a record says of itself."""

    @fx.jit
    def program(x):
        fx.print("not a log")
        fx.log("step", i=x, half=x.astype(jnp.bfloat16) / 2, a=jnp.ones((2, 2)) * x, s="é", n=None, z=1j * x)
        fx.log("step", level=logging.ERROR, i=x + 1, half=x.astype(jnp.bfloat16), a=jnp.zeros((2, 2)), s="", z=1j * x)
        fx.log("train/end", p=Point(x, None), b=b"\xff", big=2**70)

    path = tmp_path / "run"
    with fx.capture(suppress=True) as records:
        handled(fx.ParquetHandler(path), program, 1)
    table = pq.read_table(path / "event=step")
    assert {name: str(table.schema.field(name).type) for name in ("i", "half", "s", "time", "device")} == {
        "i": "int32", "half": "float", "s": "string", "time": "timestamp[us, tz=UTC]", "device": "int32",
    }  # fmt: skip
    first, second = table.to_pylist()
    assert first.pop("time").timestamp() == pytest.approx(records[1].time, abs=2e-6)
    assert first == {
        "i": 1, "half": 0.5, "a": [[1, 1], [1, 1]], "s": "é", "z": [0, 1], "level": 20, "device": 0, "lane": [],
        "token": list(records[1].token),
    }  # fmt: skip
    assert (second["i"], second["level"], second["token"]) == (2, 40, list(records[2].token))
    assert _rows(path / "event=train%2Fend", "p.x", "b", "big") == [{"p.x": 1, "b": b"\xff", "big": str(2**70)}]


def test_parquet_of_lanes_and_many_records(handled, tmp_path):
    """Lanes are rows in order; a loop's records come at once."""
    handled(fx.ParquetHandler(tmp_path), loop(lambda i: fx.log("step", i=i), 100_000))
    np.testing.assert_array_equal(_numbers(tmp_path), np.arange(100_000))
    lanes = fx.jit(jax.vmap(lambda x: fx.log("lanes", x=x)))
    handled(fx.ParquetHandler(tmp_path, append=True), lanes, jnp.arange(2))
    assert _rows(tmp_path / "event=lanes", "x", "lane") == [{"x": 0, "lane": [0]}, {"x": 1, "lane": [1]}]


def test_parquet_of_one_event_from_several_places(tmp_path):
    """Rows are in program order whatever their fields; a column has a type that holds all its values."""
    log = fx.jit(lambda x: [fx.log("step", i=x), fx.log("step", i=x + 0.5, more="m"), fx.log("step", i=x + 1)])
    with fx.capture(suppress=True) as records:
        log(1)
        fx.jit(lambda: fx.log("step", i="text"))()
        log(3)
    handler = fx.ParquetHandler(tmp_path, every=0)
    handler.handle_many(records[:3])
    assert _numbers(tmp_path) == [1, 1.5, 2]
    handler.handle_many(records[3:])
    handler.close()
    assert _rows(tmp_path / "event=step", "i", "more") == [
        {"i": i, "more": more} for i, more in (
            ("1", None), ("1.5", "m"), ("2", None), ("text", None), ("3", None), ("3.5", "m"), ("4", None),
        )
    ]  # fmt: skip


def test_parquet_goes_on_where_a_table_ends(handled, tmp_path):
    """With `append=True` rows are added; without it the handler's tables are replaced, and nothing else."""
    log = loop(lambda i: fx.log("step", i=i), 2)
    other = tmp_path / "event=step" / "notes.txt"
    handled(fx.ParquetHandler(tmp_path), log)
    for count in (2, 3):
        handled(fx.ParquetHandler(tmp_path, append=True), log)
        assert _numbers(tmp_path) == [0, 1] * count
    other.write_text("mine")
    handled(fx.ParquetHandler(tmp_path), log)
    other.unlink()
    assert _numbers(tmp_path) == [0, 1]


def test_parquet_refuses_fields_without_a_common_type_and_keeps_the_others(tmp_path):
    """What no column holds is an error, and is counted when the handler is closed."""
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: [fx.log("step", i=x), fx.log("step", i=jnp.ones(2)), fx.log("other", i=x)])(1)
    handler = fx.ParquetHandler(tmp_path, every=0)
    handler.handle(records[0])
    with pytest.raises(ValueError, match="The event 'step' was logged with fields `i` of the types int32 and list"):
        handler.handle_many(records[1:])
    with pytest.raises(OSError, match=f"1 records are not in '{tmp_path}'"):
        handler.close()
    assert _numbers(tmp_path) == [1] and _rows(tmp_path / "event=other", "i") == [{"i": 1}]


def test_parquet_path_that_is_a_file_is_the_systems_error(tmp_path):
    """The folder cannot be made there."""
    path = tmp_path / "run"
    path.write_text("before")
    with pytest.raises(FileExistsError):
        fx.ParquetHandler(path)
    assert path.read_text() == "before"


KILLED = """
import itertools
import jax, effects as fx
fx.add_handler(fx.ParquetHandler({path!r}, append=True, every=0), "log")
run = fx.jit(lambda first: jax.lax.fori_loop(0, 500, lambda i, _: fx.log("step", i=first + i), None))
for first in itertools.count({first}, 500):
    run(first)
    fx.effects_barrier()
    print(first + 500, flush=True)
"""


def test_parquet_of_a_killed_process_has_all_complete_pieces(tmp_path):
    """Whatever it was doing, what it had said was written is there; and another one goes on."""
    written = 0
    for lines in (1, 20):
        code = KILLED.format(path=str(tmp_path), first=written)
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            said = [int(process.stdout.readline()) for _ in range(lines)][-1]
            process.send_signal(signal.SIGKILL)
        numbers = _numbers(tmp_path)
        assert numbers == list(range(len(numbers))) and len(numbers) >= said
        written = len(numbers)


def test_parquet_files_of_an_event_have_the_same_columns(tmp_path, monkeypatch):
    """Whatever came first, and wherever the process has gone since: some readers ask for that."""
    monkeypatch.chdir(tmp_path)
    with fx.add_handler(fx.ParquetHandler("run", every=0), effects="log") as handler:
        for fields in {"v": 2**62 + 1}, {"v": 0.5}, {"v": 1, "extra": "text"}:
            fx.log("step", **fields)
            fx.effects_barrier(timeout=60)
            handler.flush()
            monkeypatch.chdir(tmp_path.parent)
    folder = tmp_path / "run" / "event=step"
    schemas = [pq.read_schema(file) for file in folder.glob("*.parquet")]
    assert schemas == 3 * schemas[:1]
    assert _rows(folder, "v", "extra") == [
        {"v": float(2**62), "extra": None}, {"v": 0.5, "extra": None}, {"v": 1.0, "extra": "text"}
    ]  # fmt: skip
