"""What a failure keeps alive until a barrier raises it: as little as possible, and of a known size.

A traceback has frames, and these have the operands of the function that raised, and of ours that called it: a frame
keeps the one that it was called from. So frames are cleared as soon as they do not run any more. What an exception has
in its arguments it keeps, up to a limit for all failures together.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from effects import _errors as errors


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and those of a group."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            queue += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def clear_frames(error: BaseException) -> list[FrameType]:
    """Has the frames of its tracebacks forget their variables. Returns the outermost, whose callers may still run."""
    tracebacks = [one.__traceback__ for one in chain(error) if one.__traceback__ is not None]
    for each in tracebacks:
        traceback.clear_frames(each)
    return [each.tb_frame for each in tracebacks]


def clear_callers(frame: FrameType | None) -> None:
    """Has a frame and those that called it forget their variables, up to the first that runs."""
    while frame is not None:
        try:
            frame.clear()
        except RuntimeError:
            return
        frame = frame.f_back


def held_bytes(error: BaseException) -> int:
    """How much an exception holds in its arguments and attributes, about."""
    return sum(_size(value) for one in chain(error) for value in (*one.args, *getattr(one, "__dict__", {}).values()))


def _size(value: Any, depth: int = 3) -> int:
    if isinstance(size := getattr(value, "nbytes", None), int):
        return size
    if depth and isinstance(value, dict):
        return sum(_size(inner, depth - 1) for inner in value.values())
    if depth and isinstance(value, (list, tuple, set, frozenset)):
        return sum(_size(inner, depth - 1) for inner in value)
    return sys.getsizeof(value, 0)


_OURS = str(Path(errors.__file__).parent) + os.sep
"""Where our own code lies."""


def traceback_from_user(error: BaseException) -> Any:
    """The traceback without our own frames at its beginning."""
    left = error.__traceback__
    while left is not None and left.tb_frame.f_code.co_filename.startswith(_OURS):
        left = left.tb_next
    return left
