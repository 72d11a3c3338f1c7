"""Whether writing to an output may wait for effects."""

from __future__ import annotations

import inspect
import io
from typing import Any

_FILES = (io.BufferedWriter, io.BufferedRandom, io.FileIO, io.BytesIO)

_NOTEBOOK = "ipykernel.iostream"
"""Its output hands text to a thread of its own."""


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
