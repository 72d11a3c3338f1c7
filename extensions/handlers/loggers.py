"""Records for loguru."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from effects._model.record import Record, python_value
from effects.extensions.handlers.files import library

# Records as messages of a logging library.


def level_of(record: Record) -> int:
    """The level of a log; what failed is an error, and everything else information."""
    if record.level is not None:
        return record.level
    return logging.ERROR if record.effect == "check" else logging.INFO


def file_and_line(record: Record) -> str:
    return f"{os.path.basename(record.where.file)}:{record.where.line}"


class LoguruHandler:
    """Hands records to loguru, as if the user's line had logged them: `pip install 'token-effects[loguru]'`.

    The message is the record's text, and file, line, function and time are the record's. `extra` has the fields of a
    log as values of Python's own, and of every record `effect`, `device`, `lane`, and as `effects_record` the record
    itself. A record that has no level is an `INFO`, and a check that failed an `ERROR`.

    Args:
        logger: A logger of loguru's, such as `logger.bind(run=1)`; by default `loguru.logger`.

    Raises:
        ImportError: if there is no loguru.

    Example:
        >>> import effects as fx
        >>> from loguru import logger
        >>> sink = logger.add(lambda message: print(message, end=""), format="{level} {message} {extra[loss]}")
        >>> with fx.add_handler(fx.LoguruHandler(), effects="log"):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        INFO step loss=0.5 0.5
        >>> logger.remove(sink)
    """

    def __init__(self, logger: Any = None):
        self._logger = logger or library("loguru", "LoguruHandler", "loguru").logger

    def handle(self, record: Record) -> None:
        extra = {"effect": record.effect, "device": record.device, "lane": record.lane, "effects_record": record}
        if record.event is not None:
            extra |= {"event": record.event, **python_value(record.fields)}
        bound = self._logger.bind(**extra).patch(functools.partial(_place, record))
        bound.log(self._level(level_of(record)), record.text)

    def _level(self, level: int) -> str | int:
        """loguru's own level of this number and Python's name, if it has one."""
        name = logging.getLevelName(level)
        try:
            return name if self._logger.level(name).no == level else level
        except ValueError:
            return max(level, 0)


def _place(record: Record, message: dict[str, Any]) -> None:
    """Has a message of loguru's come from the user's line, at the record's time."""
    where, time, file = record.where, message["time"], message["file"]
    base = os.path.basename(where.file)
    module = os.path.splitext(base)[0]
    message.update(
        file=type(file)(base, where.file),
        function=where.function.rpartition(".")[2],
        line=where.line,
        module=module,
        name=module,
        time=type(time).fromtimestamp(record.time, time.tzinfo),
    )


# Records for structlog.


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
        >>> handler = fx.StructlogHandler()
        >>> with structlog.testing.capture_logs() as logs, fx.add_handler(handler, effects="log"):
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
