"""Where an equation comes from in the user's code: `jax._src.source_info_util`."""

from __future__ import annotations

from typing import Any

from jax._src import source_info_util


def source_of(*eqns: Any) -> str:
    """`file:line (function)` of the user's code that made an equation, or if that is not known one of those around it,
    the innermost first."""
    found = (source_info_util.summarize(eqn.source_info) for eqn in eqns)
    return next(filter(None, found), "a line that JAX does not know")


def user_frame() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made the equation in whose context this is called."""
    frame = source_info_util.user_frame(source_info_util.current().traceback)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)
