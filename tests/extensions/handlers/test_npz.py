"""The handler that writes NumPy's files: what is in them, and when."""

from __future__ import annotations

import shutil
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import loop, pieces_of, read_npz
from tests.internals import _pieces

MILLION = 1_000_000


def _records(n, event="step", **fields):
    with fx.capture(suppress=True) as records:
        loop(lambda i: fx.log(event, i=i, **fields), n)()
    return list(records)


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


# Pieces


def test_npz_has_pieces_until_it_is_closed(tmp_path):
    """What comes together is a piece, a file of the same arrays; when the handler is closed, the arrays are whole."""
    path = tmp_path / "run.npz"
    records = [*_records(5), *_records(2, "end", word="done")]
    handler = fx.NpzHandler(path, every=0)
    for i in range(3):
        handler.handle_many(records[2 * i : 2 * i + 3])
        assert len(pieces_of(path)) == i + 1
        with np.load(path) as arrays:
            assert list(arrays) == []
    expected = {"step/i": [0, 1, 2, 2, 3, 4, 4], "end/i": [0, 1], "end/word": ["done"] * 2}
    assert {name: array.tolist() for name, array in read_npz(path).items() if "token" not in name} == expected
    handler.close()
    assert pieces_of(path) == []
    with np.load(path) as arrays:
        assert {name: array.tolist() for name, array in arrays.items() if "token" not in name} == expected
        assert arrays["step/token"].tolist() == [list(records[i].token) for i in (0, 1, 2, 2, 3, 4, 4)]


def test_npz_goes_on_where_a_file_ends(tmp_path):
    """Records are added to the arrays of a file that was closed, and to the pieces of one that was not."""
    path = tmp_path / "run.npz"
    records = _records(8)
    for i in range(2):
        handler = fx.NpzHandler(path, append=True, every=0)
        handler.handle_many(records[2 * i : 2 * i + 2])
        handler.close()
        with np.load(path) as arrays:
            assert list(arrays) == ["step/i", "step/token"] and arrays["step/i"].tolist() == [*range(2 * i + 2)]
    for i in range(4, 8):
        handler = fx.NpzHandler(path, append=True, every=0)  # which is not closed, as if its process had been killed
        handler.handle(records[i])
        assert read_npz(path)["step/i"].tolist() == [*range(i + 1)]
    fx.NpzHandler(path, append=True).close()
    with np.load(path) as arrays:
        assert arrays["step/i"].tolist() == [*range(8)]


def test_npz_is_joined_once(tmp_path, monkeypatch):
    """A process is killed when the joined file is there, and before the pieces are gone: they are not joined again."""
    path = tmp_path / "run.npz"
    handler = fx.NpzHandler(path, every=0)
    for record in _records(3):
        handler.handle(record)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        handler.flush()
    assert len(pieces_of(path)) == 3
    handler = fx.NpzHandler(path, append=True, every=0)
    handler.handle_many(_records(2))
    handler.close()
    assert read_npz(path)["step/i"].tolist() == [0, 1, 2, 0, 1] and pieces_of(path) == []


def test_npz_that_lacks_something_is_an_error(tmp_path):
    """Wherever the file or a piece was cut off, and if a piece is gone: no record is lost without a word."""
    path = tmp_path / "run.npz"
    handler = fx.NpzHandler(path)
    handler.handle_many(_records(3))
    handler.close()
    handler = fx.NpzHandler(path, append=True, every=0)
    for record in _records(3):
        handler.handle(record)
    first, second, last = pieces_of(path)
    for file in (path, second):
        content = file.read_bytes()
        for size in range(1 if file is path else 0, len(content)):
            file.write_bytes(content[:size])
            with pytest.raises(ValueError, match="cannot join the records of .*run.npz'"):
                fx.NpzHandler(path, append=True)
        file.unlink()
        if file is path:
            with pytest.raises(ValueError, match="3 records ahead of .*000003.npz' are missing"):
                handler.close()
        with pytest.raises(ValueError, match=r"records ahead of .*00000[35].npz' are missing"):
            fx.NpzHandler(path, append=True)
        file.write_bytes(content)
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(ValueError, match="1 records are missing"):
        handler.close()
    last.write_bytes(kept)
    handler.close()
    assert read_npz(path)["step/i"].tolist() == [0, 1, 2] * 2 and not first.exists()


def test_npz_adds_to_nothing_else(tmp_path):
    """A file that such a handler has not written is left alone, and so are fields that do not fit the file's."""
    path = tmp_path / "run.npz"
    for content in (
        b"text",
        {"x": np.zeros(3)},
        {"step/x": np.zeros(3)},
        {"a/token": np.zeros((2, 4)), "a/x": np.zeros(3)},
    ):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.savez(path, **content)
        before = path.read_bytes()
        with pytest.raises(ValueError, match="cannot join the records of .*run.npz': .*"):
            fx.NpzHandler(path, append=True)
        assert path.read_bytes() == before
    path.unlink()
    handler = fx.NpzHandler(path, append=True)
    handler.handle_many(_records(2))
    handler.close()
    handler = fx.NpzHandler(path, append=True)
    with pytest.raises(ValueError, match="rows of one table"):
        handler.handle_many(_records(1, other=1))
    handler.close()
    assert read_npz(path)["step/i"].tolist() == [0, 1]


def test_npz_joins_pieces_of_several_types(tmp_path):
    """A joined array has the type that holds all rows; numbers among text are text."""

    def log(x):
        fx.log("step", a=x, b=x.astype(jnp.bfloat16), c=x)

    with fx.capture(suppress=True) as records:
        fx.jit(log)(jnp.int32(3))
        fx.jit(log)(jnp.float32(0.5))
        fx.jit(lambda: fx.log("step", a=2, b=jnp.float32(0.1), c="word"))()
    path, one = tmp_path / "run.npz", tmp_path / "one.npz"
    handler, at_once = fx.NpzHandler(path, every=0), fx.NpzHandler(one)
    for record in records:
        handler.handle(record)
    at_once.handle_many(list(records))
    handler.close()
    at_once.close()
    with np.load(path) as arrays, np.load(one) as expected:
        assert arrays["step/a"].dtype == np.float64 and arrays["step/b"].dtype == np.float32
        for name in ("step/a", "step/b", "step/c"):
            np.testing.assert_array_equal(arrays[name], expected[name])


def test_npz_writes_what_has_waited_or_is_large(tmp_path, monkeypatch):
    """The memory holds a piece at most. One that is small is written when its time has come, if nothing else comes."""
    path = tmp_path / "run.npz"
    timers = []

    class Timer(threading.Thread):
        def __init__(self, seconds, run):
            super().__init__(target=run)
            self.seconds = seconds
            timers.append(self)

        def start(self):
            pass

        def cancel(self):
            pass

    monkeypatch.setattr(_pieces, "Timer", Timer)
    handler = fx.NpzHandler(path, every=3)
    handler.handle_many(_records(2))
    handler.handle_many(_records(2))
    assert [timer.seconds for timer in timers] == [3] and read_npz(path) == {}
    threading.Thread.start(timers[0])
    timers[0].join()
    assert read_npz(path)["step/i"].tolist() == [0, 1, 0, 1]
    monkeypatch.setattr(_pieces, "_LARGE", 10)
    handler.handle_many(_records(1))
    assert read_npz(path)["step/i"].tolist() == [0, 1, 0, 1, 0] and len(timers) == 1
    monkeypatch.setattr(_pieces, "_LARGE", 1000)
    handler.handle_many(_records(2))
    handler.close()
    threading.Thread.start(timers[1])  # too late
    timers[1].join()
    assert read_npz(path)["step/i"].tolist() == [0, 1, 0, 1, 0, 0, 1]


def test_npz_timers_error_is_raised_by_what_comes_next(tmp_path, monkeypatch):
    """A piece that could not be written is an error once, and its records are counted when the handler is closed."""
    handler = fx.NpzHandler(tmp_path / "run.npz", every=1e-6)

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    handler.handle_many(_records(2))
    handler._timer and handler._timer.join()
    monkeypatch.undo()
    with pytest.raises(OSError, match="disk full"):
        handler.handle_many(_records(3))
    with pytest.raises(OSError, match=r"2 records are not in .*run.npz': they could not be written \(disk full\)"):
        handler.close()
    assert read_npz(tmp_path / "run.npz")["step/i"].tolist() == [0, 1, 2]
