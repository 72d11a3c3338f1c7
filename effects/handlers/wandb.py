"""Records for Weights & Biases."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from effects._model.record import Record
from effects.handlers._extras import library
from effects.handlers._series import Steps, values_of


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
