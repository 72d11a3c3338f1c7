"""Records as messages of a logging library."""

from __future__ import annotations

import logging
import os

from effects._model.record import Record


def level_of(record: Record) -> int:
    """The level of a log; what failed is an error, and everything else information."""
    if record.level is not None:
        return record.level
    return logging.ERROR if record.effect == "check" else logging.INFO


def file_and_line(record: Record) -> str:
    return f"{os.path.basename(record.where.file)}:{record.where.line}"
