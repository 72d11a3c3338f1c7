"""The outputs to which text of effects goes: whether writing there may wait for effects, that threads can share them,
and what is shown there besides text."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

_FILES = (io.BufferedWriter, io.BufferedRandom, io.FileIO, io.BytesIO)

MSG_OUTPUT_CLOSED = (
    "Text of `print` could not be written: the output that was in force when the program was called is closed, and so "
    "is the present `sys.stdout`. Printed lines go to the `sys.stdout` of the call. Call `fx.effects_barrier()` before "
    "closing it."
)

_NOTEBOOK = "ipykernel.iostream"
"""The module of a notebook's output, which passes text to a separate thread."""


def is_notebook(output: Any) -> bool:
    """True if this is the output of a notebook's cell."""
    return type(output).__module__ == _NOTEBOOK


_LOSES_TEXT = sys.version_info < (3, 12, 4)
"""True if an `io.TextIOWrapper` loses text, and writes bytes that are no part of any text, when a thread writes while
another has it flush its buffer: CPython's issue 119506. This can go when Python 3.12.4 is the oldest supported."""


def share(output: Any) -> None:
    """Lets the drain write to this output while threads of the user's do. With `write_through` it has no buffer, so no
    text is lost; the output behind it buffers the text."""
    if _LOSES_TEXT and isinstance(output, io.TextIOWrapper) and not output.write_through:
        try:
            output.reconfigure(write_through=True)
        except Exception:  # the output is closed, or cannot flush
            return


def may_wait(output: Any) -> bool:
    """True if to write there runs Python code that we do not know: it may call programs, and wait for their effects."""
    if output is None or is_notebook(output):
        return False
    if type(output).__module__ == "tempfile":  # a wrapper, such as a named temporary file
        output = getattr(output, "file", output)
    write = inspect.getattr_static(output, "write", None)
    if write is inspect.getattr_static(io.StringIO, "write"):
        return False
    if write is not inspect.getattr_static(io.TextIOWrapper, "write"):
        return True
    try:
        buffer = output.buffer
        return type(buffer) not in _FILES or type(getattr(buffer, "raw", buffer)) not in _FILES
    except Exception:  # detached, or a class of the user raises
        return True


class BesideText:
    """The display besides text on outputs, such as progress bars: nothing, until an extension replaces this."""

    def write(self, stream: Any, text: str) -> None:
        """Writes text before what the display shows."""
        with beside_tqdm(stream):
            stream.write(text)

    def end(self, epochs: Iterable[tuple[int, int, int]]) -> None:
        """Called when epochs (thread, first, count) have ended: nothing more comes of them."""

    def close(self) -> None:
        """Leaves all as it is."""


_shown: BesideText = BesideText()


def show_beside_text(new: BesideText) -> None:
    """Replaces the display besides text."""
    global _shown
    _shown = new


def shown_beside_text() -> BesideText:
    """The display besides text."""
    return _shown


def beside_tqdm(stream: Any) -> AbstractContextManager[Any]:
    """In force while something is written. Bars of tqdm's, which a loop of the user's may have on the same terminal,
    are away meanwhile, and no other thread draws them."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if not getattr(tqdm, "_instances", None) or is_notebook(stream):
        return contextlib.nullcontext()
    return tqdm.external_write_mode(file=stream)


class Output:
    """The output that was in force when a program was called; the present one if that is closed. Text that is written
    there goes before the other display."""

    __slots__ = ("_of_call",)

    def __init__(self, of_call: Any):
        self._of_call = of_call

    def __call__(self, text: str) -> None:
        self.show(lambda stream: _shown.write(stream, text))

    def show(self, show: Callable[[Any], None]) -> None:
        """Calls `show(stream)`, unless there is no stream, as in a process without a terminal. A `BrokenPipeError`,
        which means that the stream's reader is gone, is raised once for each output."""
        if (stream := self._stream) is not None:
            try:
                show(stream)
            except BrokenPipeError:
                if stream not in _without_reader:
                    _without_reader.add(stream)
                    raise

    @property
    def _stream(self) -> Any:
        for stream in (self._of_call, sys.stdout):
            if stream is None or not getattr(stream, "closed", False):
                return stream
        raise ValueError(MSG_OUTPUT_CLOSED)


_without_reader: weakref.WeakSet[Any] = weakref.WeakSet()
"""Outputs that have raised `BrokenPipeError`."""
