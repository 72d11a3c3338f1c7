"""Lines of the user's source: the origins of effects, errors and records."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

from effects import _jax

MAX_CALLERS = 8
"""The maximum number of callers kept with a line: recursion has many, and each program carries them."""


class _Line(NamedTuple):
    file: str
    line: int
    function: str


class Where(_Line):
    """A line of the user's source: `(file, line, function)`.

    Attributes:
        callers: The lines that called its function, the nearest first, and at most eight of them. They end with the
            function that is traced: JAX traces a function once, and calls the result from several places.
    """

    callers: tuple[Where, ...] = ()

    def __str__(self) -> str:
        return _jax.named_line(self.file, self.line)

    @property
    def called(self) -> str:
        """The lines that called its function, as a part of a message; empty if there are none."""
        return f"called from {', '.join(map(str, self.callers))}" if self.callers else ""

    def called_from(self, callers: Iterable[Any]) -> Where:
        """The same line with the lines `(file, line, function)` that called its function."""
        where = Where(*self)
        where.callers = tuple(Where(*caller) for caller in callers)
        return where


def where_called(depth: int = 1) -> Where:
    """The line from which the caller of the caller was called."""
    frame: FrameType = sys._getframe(depth + 1)
    if frame.f_code is _jax.OF_CALL and frame.f_back is not None:
        frame = frame.f_back
    callers = _jax.traced_callers(frame, MAX_CALLERS)
    where = _line_of(frame)
    return where.called_from(map(_line_of, callers)) if callers else where


def _line_of(frame: FrameType) -> Where:
    return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
