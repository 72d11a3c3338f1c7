"""Records for loguru."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from effects._model.record import Record
from effects._model.values import python_value
from effects.handlers._extras import library
from effects.handlers._logger import level_of


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
