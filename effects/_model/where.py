"""Lines of the user's source."""

import sys
from types import FrameType
from typing import NamedTuple

from effects import _jax


class Where(NamedTuple):
    """A line of the user's source."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def where_called(depth: int = 1) -> Where:
    """The line from which the caller of the caller was called."""
    frame: FrameType = sys._getframe(depth + 1)
    if frame.f_code is _jax.OF_CALL and frame.f_back is not None:
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
