"""Handlers that hand records to trackers of experiments, read back as these read them."""

from __future__ import annotations

import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.handlers.common import Point, loop
from tests.internals import values_of


@fx.jit
def _train(x):
    fx.print("not a log")
    fx.log("start")
    fx.log("train", step=10, loss=x, ok=x > 0, a=jnp.array([1.0, 2.0, jnp.nan]), word="w", p=Point(x, None), z=1j)
    fx.log("train", step=20, loss=x * jnp.nan, empty=jnp.zeros(0), big=2**70)
    fx.log("count", x=x)
    fx.log("count", x=x + 1)


_lanes = fx.jit(jax.vmap(lambda x: [fx.log("lanes", x=x), fx.log("lanes", x=x + 1)]))


# TensorBoard


def _read_events(folder):
    """Scalars, histograms and texts by tag, as TensorBoard reads them."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard, which reads, is not installed"
    )
    accumulator = reader.EventAccumulator(str(folder), {"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    return (
        {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in tags["scalars"]},
        {tag: [(e.step, e.histogram_value) for e in accumulator.Histograms(tag)] for tag in tags["histograms"]},
        {tag: [(e.step, e.tensor_proto.string_val[0]) for e in accumulator.Tensors(tag)] for tag in tags["tensors"]},
        accumulator,
    )


@pytest.fixture
def _tensorboard_x():
    return pytest.importorskip("tensorboardX", reason="tensorboardX, of the extra `tensorboard`, is not installed")


def test_tensorboard_shows_scalars_histograms_and_texts(handled, tmp_path, _tensorboard_x):
    """At the record's step, or else counted by event, and at its time."""
    with fx.capture(suppress=True) as records:
        handled(fx.TensorBoardHandler(tmp_path), _train, 0.5)
    scalars, histograms, texts, accumulator = _read_events(tmp_path)
    nan = scalars["train/loss"].pop()
    assert nan[0] == 20 and np.isnan(nan[1])
    assert scalars == {
        "train/loss": [(10, 0.5)], "train/ok": [(10, 1.0)], "train/p.x": [(10, 0.5)],
        "train/big": [(20, float(2**70))], "count/x": [(0, 0.5), (1, 1.5)],
    }  # fmt: skip
    ((step, histogram),) = histograms.pop("train/a")
    assert not histograms and (step, histogram.num, histogram.min, histogram.max) == (10, 2, 1, 2)
    assert texts == {
        "start/text_summary": [(0, b"start")], "train/word/text_summary": [(10, b"w")],
        "train/z/text_summary": [(10, b"1j")],
    }  # fmt: skip
    assert accumulator.Scalars("train/ok")[0].wall_time == pytest.approx(records[2].time, abs=1e-6)


def test_tensorboard_has_a_series_for_each_lane_and_device(handled, tmp_path, _tensorboard_x):
    """So that no series has two values at one step."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    @jax.shard_map(mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
    def shards(x):
        fx.log("shards", x=x[0])

    with fx.capture(suppress=True):
        handled(fx.TensorBoardHandler(tmp_path), _lanes, jnp.array([1, 5]))
        handled(fx.TensorBoardHandler(tmp_path), fx.jit(shards), jnp.array([3, 4]))
    assert _read_events(tmp_path)[0] == {
        "lanes/x/lane_0": [(0, 1), (1, 2)], "lanes/x/lane_1": [(0, 5), (1, 6)],
        "shards/x/device_0": [(0, 3)], "shards/x/device_1": [(0, 4)],
    }  # fmt: skip


def test_tensorboard_goes_on_with_a_run(handled, tmp_path, _tensorboard_x):
    """Another handler adds to the folder; a writer of the user's stays open."""
    log = loop(lambda i: fx.log("step", i=i), 2)
    handled(fx.TensorBoardHandler(str(tmp_path)), log)
    with _tensorboard_x.SummaryWriter(str(tmp_path), filename_suffix=".second") as writer:
        handled(fx.TensorBoardHandler(writer, first_step=2), log)
        writer.add_scalar("mine", 1.0, 0)
    assert _read_events(tmp_path)[0] == {"step/i": [(0, 0), (1, 1), (2, 0), (3, 1)], "mine": [(0, 1)]}


# Weights & Biases


def _read_history(folder):
    """The rows of an offline run's history, and what its series are plotted over: what `wandb sync` uploads. The file
    is LevelDB's log of protobuf records, behind seven bytes."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, parts, rows, metrics = path.read_bytes(), 7, b"", [], {}
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole of a record, or its last part
            record = wandb_internal_pb2.Record.FromString(parts)
            parts = b""
            metrics[record.metric.glob_name] = record.metric.step_metric
            if record.WhichOneof("record_type") == "history":
                rows.append({"/".join([item.key, *item.nested_key]).strip("/"): json.loads(item.value_json)
                             for item in record.history.item})  # fmt: skip
    return rows, metrics


@pytest.fixture
def offline(monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb, of the extra `wandb`, is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    return wandb


def _logged(row):
    return {name: value for name, value in row.items() if not name.startswith("_")}


def test_wandb_logs_rows_plotted_over_their_steps(handled, tmp_path, offline):
    """Each record is a row with its step, or else one counted by event, and its time."""
    with fx.capture(suppress=True) as records:
        handled(fx.WandbHandler(project="tests", dir=str(tmp_path)), _train, 0.5)
    offline.teardown()  # wandb's process has written everything
    rows, metrics = _read_history(tmp_path)
    start, first, second, *counts = map(_logged, rows)
    assert start == {"start/step": 0, "start": "start"}
    histogram = {name: first.pop(name) for name in list(first) if name.startswith("train/a/")}
    assert histogram["train/a/_type"] == "histogram" and sum(histogram["train/a/values"]) == 2
    assert first == {
        "train/step": 10, "train/loss": 0.5, "train/ok": True, "train/word": "w", "train/p.x": 0.5, "train/z": "1j",
    }  # fmt: skip
    assert np.isnan(second.pop("train/loss")) and second == {"train/step": 20, "train/big": 2**70}
    assert counts == [{"count/step": 0, "count/x": 0.5}, {"count/step": 1, "count/x": 1.5}]
    assert [metrics[name] for name in ("train/*", "count/*")] == ["train/step", "count/step"]
    assert rows[1]["_timestamp"] == pytest.approx(records[2].time)


def test_wandb_run_of_the_users_stays_open(handled, tmp_path, offline):
    """The handler adds to it, lanes as series of their own, and does not finish it."""
    run = offline.init(project="tests", dir=str(tmp_path))
    with fx.capture(suppress=True):
        handled(fx.WandbHandler(run, first_step=5), _lanes, jnp.array([1, 5]))
    run.log({"mine": 1})
    run.finish()
    offline.teardown()
    rows, _ = _read_history(tmp_path)
    assert list(map(_logged, rows)) == [
        {"lanes/step": 5, "lanes/x/lane_0": 1}, {"lanes/step": 5, "lanes/x/lane_1": 5},
        {"lanes/step": 6, "lanes/x/lane_0": 2}, {"lanes/step": 6, "lanes/x/lane_1": 6}, {"mine": 1},
    ]  # fmt: skip


def test_step_that_is_no_whole_number_is_a_series():
    """And the records are counted."""
    with fx.capture(suppress=True) as records:
        fx.log("train", step=5.5, loss=1.0)
        fx.log("train", step=7, loss=1.0)
    assert [dict(values_of(record)) for record in records] == [
        {"train/step": 5.5, "train/loss": 1.0}, {"train/loss": 1.0}
    ]  # fmt: skip
