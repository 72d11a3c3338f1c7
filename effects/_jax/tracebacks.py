"""Tracebacks that show the user's frames only: `jax._src.traceback_util`."""

from __future__ import annotations

import os

from jax._src import source_info_util, traceback_util
from jax._src.traceback_util import api_boundary as api_boundary


def hide_frames_in(folder: str) -> None:
    """Leaves a package of ours out of the tracebacks and source lines that JAX shows its users."""
    source_info_util.register_exclusion(folder + os.sep)
    traceback_util.register_exclusion(folder + os.sep)


def hide_frames(error: Exception) -> None:
    """Takes our frames from the traceback of an exception on its way to the user, as JAX takes away its own, unless the
    user wants to see them. JAX's `api_boundary` would do it too, and be another function that every call goes through.
    """
    mode = traceback_util._filtering_mode()
    if error.__traceback__ is None or mode == "off" or traceback_util._is_under_reraiser(error):
        return
    if mode == "tracebackhide":
        traceback_util._add_tracebackhide_to_hidden_frames(error.__traceback__)
    else:
        error.with_traceback(traceback_util.filter_traceback(error.__traceback__))
