"""Values of records as text: JSON and cells of a table."""

from __future__ import annotations

from typing import Any

import jax

from effects import _jax
from effects._model.record import Record
from effects._model.values import encode, plain, python_value


def json_object(record: Record) -> dict[str, Any]:
    """A record as JSON has it."""
    return record.dict_with(plain) | _run()


def _run() -> dict[str, Any]:
    """What the processes of one run have in common, where there are several."""
    run = _jax.run_id()
    return {} if run is None else {"run": run, "process_count": jax.process_count()}


def csv_cell(value: Any) -> Any:
    value = python_value(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float, complex)) else encode(plain(value))
