"""Patterns for lines with effects, and switches of their filters."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from effects import _errors as errors
from effects._model.filter import is_count, level_of
from effects._model.where import Where
from effects.lowering.sites import Line, LineFilter

MSG_PATTERN = (
    "{call} was given {pattern}. A pattern is a file, or the end of its path, with a line behind it if one is meant. "
    "Write, say, `fx.sites('train.py:31')` or `fx.sites('models/*.py')`."
)
MSG_EVERY = (
    "{call} was given {value}. `every` is a positive whole number of at most 64 bits. Pass, say, 100, to show one of "
    "every 100 effects."
)
MSG_LEVEL = (
    "{call} was given {value}. A level is a whole number, as for `logging`, or the name that `logging` has for one. "
    "Pass, say, `logging.WARNING` or 'warning'."
)

Switch = Callable[[LineFilter], None]
"""Changes a filter, at once."""


class Pattern(NamedTuple):
    """Names lines: `train.py:31`, `train.py`, `models/*.py`."""

    file: str
    line: int | None

    @classmethod
    def read(cls, pattern: Any, call: str) -> Pattern:
        if not isinstance(pattern, str) or not pattern:
            raise errors.type_error(MSG_PATTERN.format(call=call, pattern=errors.shown(pattern)))
        file, _, line = pattern.rpartition(":")
        return cls(file, int(line)) if file and line.isdecimal() else cls(pattern, None)

    def names(self, line: Line) -> bool:
        if self.line not in (None, line.line):
            return False
        # The name in messages matches too: users never see the file of a notebook's cell.
        shown = re.sub(r":\d+$", "", str(Where(line.file, line.line, line.function)))
        patterns = (self.file, f"*/{self.file}")
        return any(fnmatch.fnmatchcase(file, pattern) for file in (line.file, shown) for pattern in patterns)


def turn(on: bool) -> Switch:
    """Shows effects again, as far as the rest of their filters lets them, or none of them."""
    return lambda known: known.turn(on)


def show_every(n: Any, call: str) -> Switch:
    """Shows one of every `n` effects."""
    if not is_count(n):
        raise errors.value_error(MSG_EVERY.format(call=call, value=errors.shown(n)))
    return lambda known: known.show_every(int(n))


def show_from(level: Any, call: str) -> Switch:
    """Shows effects of this level or a higher one, independently of the logger's level."""
    if (least := level_of(level)) is None:
        raise errors.value_error(MSG_LEVEL.format(call=call, value=errors.shown(level)))
    return lambda known: known.show_from(least)
