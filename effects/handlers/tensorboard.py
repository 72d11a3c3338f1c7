"""Records for TensorBoard."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import numpy as np

from effects._model.record import Record
from effects.handlers._extras import library
from effects.handlers._series import Steps, values_of

_count = itertools.count()


def _suffix() -> str:
    """Ends the name of a file, which otherwise has only the second and the machine."""
    return f".{os.getpid()}.{next(_count)}"


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
            writer = tensorboard_x.SummaryWriter(os.fspath(writer), flush_secs=1, filename_suffix=_suffix())
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
