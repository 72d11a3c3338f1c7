"""Finding a callback that waits for ever: for devices that wait for it.

Devices run one program over several of them at a time. If such a program waits for a callback, and the callback for a
computation over several devices, neither goes on. XLA does not tell, so we look where the callback's thread stands.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import FrameType

import jax

_PATIENCE = 1.0
"""Seconds for which a function must have been running before anybody looks."""

_JAX = str(Path(jax.__file__).parent)


def is_stuck(thread: int, since: float) -> bool:
    """Whether a function that a program over several devices waits for waits itself for values on several devices.

    Args:
        thread: The identity of the thread that runs the function.
        since: When it began, by `time.monotonic`.
    """
    if time.monotonic() - since < _PATIENCE:
        return False
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_JAX):
        for value in list(frame.f_locals.values()):
            if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and _is_awaited(value):
                return True
        frame = frame.f_back
    return False


def _is_awaited(array: jax.Array) -> bool:
    return len(array.sharding.device_set) > 1 and not array.is_deleted() and not array.is_ready()
