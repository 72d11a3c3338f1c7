"""Where the text of a program's effects goes."""

from __future__ import annotations

import sys
from typing import Any

from effects._bars.state import bars

MSG_OUTPUT_CLOSED = (
    "Text of `print` could not be written: the output that was in force when the program was called is closed, and so "
    "is the present `sys.stdout`. Printed lines go to the `sys.stdout` of the call. Call `fx.effects_barrier()` before "
    "closing it."
)


class Output:
    """The output that was in force when a program was called; the present one if that is closed. Text that is written
    there stands ahead of the bars that are shown there."""

    __slots__ = ("_of_call",)

    def __init__(self, of_call: Any):
        self._of_call = of_call

    def __call__(self, text: str) -> None:
        if (stream := self.stream) is not None:
            bars.write(stream, text)

    @property
    def stream(self) -> Any:
        """None if there is none, as in a process without a terminal."""
        for stream in (self._of_call, sys.stdout):
            if stream is None or not getattr(stream, "closed", False):
                return stream
        raise ValueError(MSG_OUTPUT_CLOSED)
