"""The outputs to which text of effects goes: whether writing there may wait for effects, and that threads can share
them."""

from __future__ import annotations

import inspect
import io
import sys
from typing import Any

_FILES = (io.BufferedWriter, io.BufferedRandom, io.FileIO, io.BytesIO)

_NOTEBOOK = "ipykernel.iostream"
"""Its output hands text to a thread of its own."""


_LOSES_TEXT = sys.version_info < (3, 12, 4)
"""Whether an `io.TextIOWrapper` loses text, and writes bytes that nobody gave it, when a thread writes while another
has it write out what it has gathered: CPython's issue 119506."""


def share(output: Any) -> None:
    """Lets the drain write to this output while threads of the user's do. One that passes on all at once gathers no
    text, so none is lost; what is behind it gathers it."""
    if _LOSES_TEXT and isinstance(output, io.TextIOWrapper) and not output.write_through:
        try:
            output.reconfigure(write_through=True)
        except Exception:  # it is closed, or cannot write out what it has
            return


def may_wait(output: Any) -> bool:
    """Whether to write there runs Python code that we do not know: it may call programs, and wait for their effects."""
    if output is None or type(output).__module__ == _NOTEBOOK:
        return False
    if type(output).__module__ == "tempfile":  # a named temporary file, around what writes
        output = getattr(output, "file", output)
    write = inspect.getattr_static(output, "write", None)
    if write is inspect.getattr_static(io.StringIO, "write"):
        return False
    if write is not inspect.getattr_static(io.TextIOWrapper, "write"):
        return True
    try:
        buffer = output.buffer
        return type(buffer) not in _FILES or type(getattr(buffer, "raw", buffer)) not in _FILES
    except Exception:  # nothing is behind it any more, or a class of the user's has a word to say
        return True
