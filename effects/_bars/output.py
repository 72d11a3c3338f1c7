"""Where the text of a program's effects goes."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

from effects._bars.state import Owner, Steps, bars

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
            try:
                bars.write(stream, text)
            except BrokenPipeError:
                _raise_once(stream)

    def show_bar(self, owner: Owner, key: Hashable, description: str, lanes: Mapping[Hashable, Steps]) -> None:
        """How far lanes of the bar with this key are, of this program."""
        if (stream := self.stream) is not None:
            try:
                bars.update(stream, owner, key, description, lanes)
            except BrokenPipeError:
                _raise_once(stream)

    @property
    def stream(self) -> Any:
        """None if there is none, as in a process without a terminal."""
        for stream in (self._of_call, sys.stdout):
            if stream is None or not getattr(stream, "closed", False):
                return stream
        raise ValueError(MSG_OUTPUT_CLOSED)


_without_reader: weakref.WeakSet[Any] = weakref.WeakSet()
"""Outputs that have raised `BrokenPipeError`, which is reported once for each."""


def _raise_once(stream: Any) -> None:
    """Raises the `BrokenPipeError` that is being handled, unless it was reported for this output before."""
    if stream not in _without_reader:
        _without_reader.add(stream)
        raise
