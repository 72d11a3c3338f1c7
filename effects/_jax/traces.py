"""Calls of jitted functions, and the traces around them."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import jax
from jax._src import config as jax_config
from jax._src import core, custom_derivatives, source_info_util, traceback_util
from jax._src import mesh as jax_mesh
from jax._src.export import _export
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import xla_client
from jax._src.traceback_util import api_boundary as api_boundary

_OUTSIDE_OF_TRACES = (
    (core.trace_state_strong_ref, core.eval_trace),
    (core.axis_env_state, core.top_axis_env),
)

STATE_OF_CALLS: tuple[tuple[Any, Any], ...] = (*_OUTSIDE_OF_TRACES, (jax_config.disable_jit, False))
"""The states, each with the `value` that it has if a call of a jitted function runs now: no trace is under way, and jit
is not disabled."""


def runs_now() -> bool:
    """True if a call of a jitted function is compiled and runs now, and is not traced or evaluated eagerly."""
    for state, value in STATE_OF_CALLS:  # noqa: SIM110 - `all` would enter a frame for each, at every call
        if state.value is not value:
            return False
    return True


def is_outside_of_traces() -> bool:
    """True if no trace is under way, so that operations are computed at once."""
    return all(state.value is value for state, value in _OUTSIDE_OF_TRACES)


def leave_traces() -> None:
    """Leaves all traces, after an error in a call that began outside of traces. An interrupt may have kept JAX from
    leaving a trace, and all later calls of this thread would become part of it."""
    core.trace_ctx.reset()


def is_staged() -> bool:
    """True if operations become part of a jaxpr, possibly through other transformations."""
    trace = core.trace_ctx.trace
    while trace is not None and not isinstance(trace, pe.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def traced_callers(frame: FrameType, at_most: int) -> list[FrameType]:
    """The user's frames that called the function of this frame, the nearest first, up to the function that JAX traces.
    Empty outside of traces."""
    callers: list[FrameType] = []
    caller = None if is_outside_of_traces() else frame.f_back
    while caller is not None and len(callers) < at_most:
        file = caller.f_code.co_filename
        if file == pe.__file__:
            return callers
        if source_info_util.is_user_filename(file):
            callers.append(caller)
        caller = caller.f_back
    return callers if caller is not None else []


def user_stack(frame: FrameType | None, at_most: int) -> list[tuple[FrameType, bool, bool]]:
    """The user's frames from this one outward, each with two flags: True if its values belong to a single trace, and
    True if its values can be operands here. The second is true in the function that is being traced, and for all frames
    outside of jaxprs; it is false in a rule for `jax.custom_jvp`, since tangents may never have values."""
    stack: list[tuple[FrameType, int]] = []
    depth, in_rule = 0, False
    while frame is not None:
        file = frame.f_code.co_filename
        depth += file == pe.__file__
        in_rule = in_rule or (depth == 0 and frame.f_code in _RULES)
        if len(stack) < at_most and source_info_util.is_user_filename(file):
            stack.append((frame, depth))
        frame = frame.f_back
    return [(each, at < depth or depth == 0, at == 0 and not in_rule) for each, at in stack]


_RULES = {custom_derivatives._flatten_jvp.args[0].__code__}
"""The code of JAX's function that calls user rules for `jax.custom_jvp`."""


def is_of_traces_here(tracer: core.Tracer) -> bool:
    """True if a tracer belongs to the current trace or to one around it."""
    trace = core.trace_ctx.trace
    while trace is not None and trace is not tracer._trace:
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def is_being_traced() -> bool:
    """True if the caller is inside a function that is being staged. `is_staged` alone is not enough, since an interrupt
    may have left a trace behind; the stack then has no frame of `partial_eval.py`."""
    frame = sys._getframe() if is_staged() else None
    while frame is not None and frame.f_code.co_filename != pe.__file__:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """A context in which calls of jitted functions run at once, even while tracing, and are not checked for NaN."""
    axis_env = core.trace_ctx.axis_env
    no_mesh = jax_mesh.use_abstract_mesh(jax_mesh.empty_abstract_mesh)
    checks = jax_config.debug_nans(False), jax_config.debug_infs(False)
    with core.eval_context(), jax.disable_jit(False), checks[0], checks[1], no_mesh:
        core.trace_ctx.set_axis_env(core.top_axis_env)
        try:
            yield
        finally:
            core.trace_ctx.set_axis_env(axis_env)


def forget_fast_paths(jitted: Any) -> None:
    """Clears the fast paths of a jitted function, so that its next calls go through Python. Traces and compiled
    programs are kept."""
    jitted._clear_cache()


def tracers_closed_over(traced: Any) -> list[Any]:
    """The tracers that a traced function closes over. They are its first arguments."""
    return list(traced._consts)


def with_flat_arguments(traced: Any) -> Any:
    """A traced function with flat arguments, the leaves of the original ones.

    JAX would unflatten descriptions of the arguments when lowering, and a user class may refuse leaves that are not
    arrays.
    """
    flat = copy.copy(traced)
    flat._in_tree = jax.tree.structure(((0,) * traced._in_tree.num_leaves, {}))
    return flat


def count_fast_paths(jitted: Any) -> int:
    """The number of kinds of arguments for which JAX has, or is making, a fast path of a jitted or compiled function.
    The first call of a kind makes the path, and other calls of that kind wait until it has returned."""
    jitted = jitted._call if isinstance(jitted, jax.stages.Compiled) else jitted
    return jitted._cache_size() if hasattr(jitted, "_cache_size") else 0


def call_beside_fast_paths(jitted: Any) -> Callable[..., Any]:
    """A function that calls a jitted or compiled function without making a fast path or waiting for one."""
    jitted = (jitted._call or jitted) if isinstance(jitted, jax.stages.Compiled) else jitted
    if not hasattr(jitted, "_cache_miss"):
        return jitted
    return lambda *args, **kwargs: jitted._cache_miss(*args, **kwargs)[0]


def check_symbolic_scopes(fun: Any, args: Any, kwargs: Any) -> None:
    """Raises the error of `jax.export` if the sizes of arguments are from different symbolic scopes."""
    _export.check_symbolic_scope_errors(fun, args, kwargs)


launches_take_threads = jax.__version_info__ < (0, 12)
"""True if XLA launches programs over several CPU devices on the threads that also compute, as it does below JAX 0.12.
The launch of a 33rd program on a device blocks (`max_inflight_computations_per_device` in
xla/pjrt/plugin/xla_cpu/cpu_client_options.h), and may then hold a thread that one of the 32 needs: a deadlock."""


# Tracebacks that show the user's frames only: `jax._src.traceback_util`.

_OF_JAX = os.path.dirname(jax.__file__) + os.sep

P = ParamSpec("P")
T = TypeVar("T")


def hide_frames_in(folder: str) -> None:
    """Leaves a package of ours out of the tracebacks and source lines that JAX shows its users."""
    source_info_util.register_exclusion(folder + os.sep)
    traceback_util.register_exclusion(folder + os.sep)


def hide_frames(error: BaseException) -> None:
    """Removes our frames from the traceback of an exception, as JAX removes its own, unless the user's setting keeps
    them. JAX's `api_boundary` would do the same, but adds a function to every call.
    """
    if (
        not isinstance(error, Exception)
        or error.__traceback__ is None
        or traceback_util._filtering_mode() == "off"
        or traceback_util._is_under_reraiser(error)
    ):
        return
    left, lines, entry = None, [], error.__traceback__
    while entry is not None:
        lines.append(entry)
        entry = entry.tb_next
    for entry in reversed(lines):
        if _is_users(entry.tb_frame.f_code.co_filename):
            left = types.TracebackType(left, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.with_traceback(left)


def _is_users(file: str) -> bool:
    # JAX excludes only some of its own files.
    return traceback_util.include_filename(file) and not file.startswith(_OF_JAX)


take_stack = xla_client.Traceback.get_traceback
"""Returns the stack of the calling thread: its lines, without variables."""


def traceback_of(stack: Any) -> types.TracebackType | None:
    """The user's lines of a stack as a traceback, without the outer frames that the present stack has too."""
    lines, present = (
        [(frame.file_name, frame.line_num) for frame in reversed(each.frames)] for each in (stack, take_stack())
    )
    shared = [*itertools.takewhile(lambda both: both[0] == both[1], zip(lines, present, strict=False))]
    made = None
    for each in stack.frames[: len(lines) - len(shared)]:
        if _is_users(each.file_name):
            frame = _frame_at(each.file_name, each.function_name, each.function_start_line, each.line_num)
            made = types.TracebackType(made, frame, -1, each.line_num)  # -1: unknown columns
    return made


def _frame_at(file: str, function: str, start: int, line: int) -> Any:
    """A frame like that of a function that has raised at this line."""
    source = "\n" * (start - 1) + "def f():" + "\n" * (line - start) + " 0 / 0"
    [code, *_] = compile(source, file, "exec").co_consts
    try:
        eval(code.replace(co_name=function.rpartition(".")[2], co_qualname=function))
    except ZeroDivisionError as error:
        return error.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]


class Refused(NotImplementedError):
    """An effect cannot be lowered. The text names the user's line, so the cause by which JAX would show that line is
    not kept."""

    __cause__: Any = property(lambda self: None, lambda self, cause: None)


Refused.__name__ = Refused.__qualname__ = NotImplementedError.__name__
Refused.__module__ = NotImplementedError.__module__


def for_users(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps a function of ours that users call: its exceptions show the user's frames only, and an interrupt leaves no
    trace of JAX's behind."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        outside = is_outside_of_traces()
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if outside:
                try:
                    leave_traces()
                finally:  # once more: an interrupt may have ended the first call
                    leave_traces()
            hide_frames(error)
            raise

    return call


OF_CALL = for_users(hide_frames).__code__
"""The code of the wrapper between such a function and its caller."""
