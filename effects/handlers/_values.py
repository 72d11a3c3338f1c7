"""Values of records as text: JSON and cells of a table."""

from __future__ import annotations

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.record import Record
from effects.handlers._columns import is_number

encode = json.JSONEncoder(allow_nan=False).encode


def json_object(record: Record) -> dict[str, Any]:
    where = record.where
    return {
        "effect": record.effect,
        **record._site.content.to_json(record),
        "fields": plain(record.fields),
        "args": plain(record.args),
        "where": {"file": where.file, "line": where.line, "function": where.function},
        "device": record.device,
        "process": record.process,
        "thread": record.thread,
        "token": record.token,
        "lane": record.lane,
        **({} if record.grid is None else {"grid": record.grid}),
        **({} if record.ordered else {"ordered": False}),
        **({"after_error": True} if record.after_error else {}),
        **({"processes": processes} if (processes := record.processes) else {}),
        **_run(),
    }


def _run() -> dict[str, Any]:
    """What the processes of one run have in common, where there are several."""
    run = _jax.run_id()
    return {} if run is None else {"run": run, "process_count": jax.process_count()}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim or value.dtype.kind not in "biuf":
            return _plain_array(np.asarray(value))
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, bytes):
        return value.hex()
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if leaves and leaves[0][1] is value:
        return str(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): plain(leaf) for path, leaf in leaves}


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain_array(array: np.ndarray) -> Any:
    kind = array.dtype.kind
    if kind in "biuU":
        return array.tolist()
    if kind == "c":
        return _plain_array(np.stack([np.real(array), np.imag(array)], -1))
    if not is_number(array.dtype):
        return plain(array.tolist()) if kind in "SO" else array.astype(str).tolist()
    if kind != "f":
        array = array.astype(np.float64 if jnp.issubdtype(array.dtype, np.floating) else np.int64)
    finite = np.isfinite(array)
    if finite.all():
        return array.tolist()
    shown = array.astype(object)
    shown[~finite] = [_NOT_FINITE[str(value)] for value in array[~finite].tolist()]
    return shown.tolist()


def csv_cell(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float, complex)) else encode(plain(value))
