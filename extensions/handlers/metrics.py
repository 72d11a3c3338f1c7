"""Records for TensorBoard."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from effects._model.record import Record, is_number, python_value, site_of
from effects._model.wire import PHASE, in_region
from effects.extensions.handlers.files import library

# The records of logs as what trackers of experiments plot: values by name, over steps.


class Steps:
    """The step of each record: its field `step`, if that is a whole number. Of others, how many of their event have
    come before, in their lane and on their device, on top of `first`. No two threads may ask at a time."""

    def __init__(self, first: int):
        self._first = first
        self._counts: dict[tuple[str | None, str], int] = {}

    def of(self, record: Record) -> int:
        if _is_step(step := record.fields.get("step")):
            return int(np.asarray(step))
        key = record.event, place_of(record)
        count = self._counts.get(key, self._first)
        self._counts[key] = count + 1
        return count


def _is_step(value: Any) -> bool:
    """Whether the field `step` says which step it is: other values are those of a series."""
    value = np.asarray(value)
    return value.dtype.kind in "iu" and not value.ndim


def place_of(record: Record) -> str:
    """What tells a series from those of other lanes, and of other devices where each has its own, or nothing."""
    lane = f"/lane_{'_'.join(map(str, record.lane))}" if record.lane else ""
    return f"{lane}/device_{record.device}" if in_region(record.token[PHASE]) else lane


def values_of(record: Record) -> Iterator[tuple[str, Any]]:
    """The values of a log by the names of their series, such as `step/loss` or `step/state.x/lane_1`, without a field
    `step` that says which step it is. Each is a number, an array of finite numbers, or text; an event without fields is
    a text."""
    place = place_of(record)
    names, leaves = site_of(record).leaf_names, jax.tree.leaves((record.args, record.fields))
    if not names:
        yield f"{record.event}{place}", record.text
    for name, leaf in zip(names, leaves, strict=True):
        if name != "step" or not _is_step(leaf):
            value = _plotted(leaf)
            if value is not None:
                yield f"{record.event}/{name}{place}", value


def _plotted(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "cSUO" or not is_number(array.dtype):
        return str(python_value(value))
    if not array.ndim:
        return python_value(array)
    array = array.astype(np.float64)
    array = array[np.isfinite(array)]
    return array if array.size else None


_count = itertools.count()


class TensorBoardHandler:
    """Shows the fields of logs in TensorBoard, through tensorboardX: `pip install 'token-effects[tensorboard]'`.

    The series of a field is `event/field`; a field that is a pytree has one for each of its leaves, such as
    `step/state.x`. Under `vmap` each lane has its own, such as `step/loss/lane_2`, and where each device has its own
    effects each device, `step/loss/device_1`. Numbers are scalars, arrays are histograms of their finite values, and
    everything else is text, as is an event without fields. None is not shown. Records of other effects are not shown.

    The step is the field `step`, if the record has one that is a whole number, and otherwise the number of records of
    its series so far. The time is `record.time`.

    A folder that has a run gets another file, which TensorBoard shows as the same run. A process that is killed loses
    what came in the last second, and what tensorboardX has queued: ten values at most.

    Args:
        writer: The folder, or a writer with `add_scalar`, `add_histogram` and `add_text`, such as a `SummaryWriter` of
            tensorboardX or PyTorch, which is flushed when the handler is closed, and left open.
        first_step: From which number records without a field `step` are counted, as when a run is resumed.

    Raises:
        ImportError: if there is no tensorboardX, and it is needed.

    Example:
        >>> import effects as fx, os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with fx.add_handler(fx.TensorBoardHandler(folder), effects="log"):
        ...     fx.jit(lambda x: fx.log("train", step=3, loss=x))(0.5)
        >>> len(os.listdir(folder))
        1
    """

    def __init__(self, writer: str | os.PathLike[str] | Any, *, first_step: int = 0):
        self._is_own = isinstance(writer, (str, os.PathLike))
        if self._is_own:
            tensorboard_x = library("tensorboardX", "TensorBoardHandler", "tensorboard")
            suffix = f".{os.getpid()}.{next(_count)}"  # otherwise a file's name has only the second and the machine
            writer = tensorboard_x.SummaryWriter(os.fspath(writer), flush_secs=1, filename_suffix=suffix)
        self._writer: Any = writer
        self._steps = Steps(first_step)
        self._lock = threading.Lock()

    def handle(self, record: Record) -> None:
        if record.event is None:
            return
        with self._lock:
            at = {"global_step": self._steps.of(record), "walltime": record.time}
            for name, value in values_of(record):
                if isinstance(value, str):
                    self._writer.add_text(name, value, **at)
                elif isinstance(value, np.ndarray):
                    self._writer.add_histogram(name, value, **at)
                else:
                    self._writer.add_scalar(name, float(value), **at)

    def close(self) -> None:
        if self._is_own:
            self._writer.close()
        else:
            self._writer.flush()


# Records for Weights & Biases.


class WandbHandler:
    """Logs the fields of logs to a run of Weights & Biases: `pip install 'token-effects[wandb]'`.

    The series of a field is `event/field`; a field that is a pytree has one for each of its leaves, such as
    `step/state.x`. Under `vmap` each lane has its own, such as `step/loss/lane_2`, and where each device has its own
    effects each device, `step/loss/device_1`. Numbers and text are themselves, and arrays are histograms of their
    finite values; an event without fields is a text. None is not logged. Records of other effects are not logged.

    Each record is a row of the run's history, whose own number only grows. So what is plotted over is a series of its
    own, `event/step`: the field `step`, if the record has one that is a whole number, and otherwise the number of
    records of its series so far. The time is `record.time`.

    wandb's own process writes the rows, in blocks of 32 KiB. A process that is killed loses the last block at most.

    Args:
        run: The run, as `wandb.init` returned it, which stays open. By default one is begun, and finished when the
            handler is closed.
        first_step: From which number records without a field `step` are counted, as when a run is resumed.
        **init: What `wandb.init` is called with if no run is given, such as `project`, `mode`, and `id` with `resume`.

    Attributes:
        run: The run.

    Raises:
        ImportError: if there is no wandb.

    Example:
        >>> import effects as fx, tempfile
        >>> handler = fx.WandbHandler(project="demo", mode="offline", dir=tempfile.mkdtemp())
        >>> with fx.add_handler(handler, effects="log"):
        ...     fx.jit(lambda x: fx.log("train", step=3, loss=x))(0.5)
        >>> handler.run.offline
        True
    """

    def __init__(self, run: Any = None, *, first_step: int = 0, **init: Any):
        self._wandb = library("wandb", "WandbHandler", "wandb")
        self._is_own = run is None
        self.run: Any = self._wandb.init(**init) if run is None else run
        self._steps = Steps(first_step)
        self._events: set[str] = set()  # of which the run knows what they are plotted over
        self._lock = threading.Lock()

    def handle(self, record: Record) -> None:
        if (event := record.event) is None:
            return
        with self._lock:
            if event not in self._events:
                self._events.add(event)
                self.run.define_metric(f"{event}/*", step_metric=f"{event}/step")
            row: dict[str, Any] = {f"{event}/step": self._steps.of(record), "_timestamp": record.time}
            for name, value in values_of(record):
                row[name] = self._wandb.Histogram(value) if isinstance(value, np.ndarray) else value
            self.run.log(row)

    def close(self) -> None:
        if self._is_own:
            self.run.finish()
