"""Tracebacks that show the user's frames only: `jax._src.traceback_util`."""

from __future__ import annotations

import functools
import os
import traceback
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax._src import source_info_util, traceback_util
from jax._src.traceback_util import api_boundary as api_boundary

from effects._jax.traces import is_outside_of_traces, leave_traces

_OF_JAX = os.path.dirname(jax.__file__) + os.sep

P = ParamSpec("P")
T = TypeVar("T")


def hide_frames_in(folder: str) -> None:
    """Leaves a package of ours out of the tracebacks and source lines that JAX shows its users."""
    source_info_util.register_exclusion(folder + os.sep)
    traceback_util.register_exclusion(folder + os.sep)


def hide_frames(error: BaseException) -> None:
    """Takes our frames from the traceback of an exception on its way to the user, as JAX takes away its own, unless the
    user wants to see them. JAX's `api_boundary` would do it too, and be another function that every call goes through.
    """
    mode = traceback_util._filtering_mode()
    if (
        not isinstance(error, Exception)
        or error.__traceback__ is None
        or mode == "off"
        or traceback_util._is_under_reraiser(error)
    ):
        return
    if mode == "tracebackhide":
        traceback_util._add_tracebackhide_to_hidden_frames(error.__traceback__)
        return
    left = None
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        # Of JAX's own files it leaves some out only.
        if traceback_util.include_frame(frame) and not frame.f_code.co_filename.startswith(_OF_JAX):
            left = types.TracebackType(left, frame, frame.f_lasti, line)
    error.with_traceback(left)


class Refused(NotImplementedError):
    """An effect that cannot be lowered. Its text names the user's line, so it takes no cause that JAX makes of it to
    show that line."""

    __cause__: Any = property(lambda self: None, lambda self, cause: None)


Refused.__name__ = Refused.__qualname__ = NotImplementedError.__name__
Refused.__module__ = NotImplementedError.__module__


def for_users(function: Callable[P, T]) -> Callable[P, T]:
    """A function of ours that users call: what it raises shows their frames only, and an interrupt leaves no trace of
    JAX's behind."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        outside = is_outside_of_traces()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if outside:
                try:
                    leave_traces()
                finally:  # once more: another interrupt may have ended the first
                    leave_traces()
            hide_frames(error)
            raise

    return call


OF_CALL = for_users(hide_frames).__code__
"""The code of what stands between such a function and its caller."""
