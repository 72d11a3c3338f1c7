"""Records for structlog."""

from __future__ import annotations

import logging
from typing import Any

from effects._model.record import Record
from effects._model.values import python_value
from effects.handlers._extras import library
from effects.handlers._logger import file_and_line, level_of


class StructlogHandler:
    """Hands records to structlog: `pip install 'token-effects[structlog]'`.

    The event of a log is its event, with its fields as values of Python's own; of other records it is their text. Each
    has `where` (the user's file and line), under `vmap` `lane`, and in a kernel `grid`. The level is that of structlog
    at or below the record's; a record that has none is an `info`, and a check that failed an `error`.

    Args:
        logger: A logger of structlog's; by default `structlog.get_logger()`.

    Raises:
        ImportError: if there is no structlog.

    Example:
        >>> import effects as fx, structlog
        >>> with structlog.testing.capture_logs() as logs, fx.add_handler(fx.StructlogHandler(), effects="log"):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        ...     fx.effects_barrier()
        >>> logs[0]["event"], logs[0]["loss"], logs[0]["log_level"]
        ('step', 0.5, 'info')
    """

    def __init__(self, logger: Any = None):
        self._logger = library("structlog", "StructlogHandler", "structlog").get_logger() if logger is None else logger

    def handle(self, record: Record) -> None:
        values: dict[str, Any] = {"where": file_and_line(record)}
        if record.lane:
            values["lane"] = record.lane
        if record.grid is not None:
            values["grid"] = record.grid
        if record.event is not None:
            values |= python_value(record.fields)
        log = getattr(self._logger, _method(level_of(record)))
        log(record.text if record.event is None else record.event, **values)


def _method(level: int) -> str:
    """The method of a logger for this level, or for the next below it."""
    known = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    return logging.getLevelName(next((each for each in known if each <= level), logging.DEBUG)).lower()
