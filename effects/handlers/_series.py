"""The records of logs as what trackers of experiments plot: values by name, over steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from effects._model.record import Record
from effects._model.values import is_number, python_value
from effects._model.wire import PHASE, in_region


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
    names, leaves = record._site.leaf_names, jax.tree.leaves((record.args, record.fields))
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
