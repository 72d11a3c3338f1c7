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
"""What has which `value` where a call of a jitted function is compiled and runs now: no trace is under way, and jit is
not disabled."""


def runs_now() -> bool:
    """Whether a call of a jitted function is compiled and runs now."""
    for state, value in STATE_OF_CALLS:  # noqa: SIM110 - `all` would enter a frame for each, at every call
        if state.value is not value:
            return False
    return True


def is_outside_of_traces() -> bool:
    """Whether what is called now is computed now."""
    return all(state.value is value for state, value in _OUTSIDE_OF_TRACES)


def leave_traces() -> None:
    """After an error in a call that began outside of traces: an interrupt may have kept JAX from leaving one, and all
    that this thread called later would be taken for a part of it."""
    core.trace_ctx.reset()


def is_staged() -> bool:
    """Whether what is called now becomes part of a jaxpr, whatever transformations are between."""
    trace = core.trace_ctx.trace
    while trace is not None and not isinstance(trace, pe.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def traced_callers(frame: FrameType, at_most: int) -> list[FrameType]:
    """The user's frames that called the function of this frame, the nearest first, and the function that JAX traces
    last. Outside of traces there are none."""
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
    """The user's frames from this one outward, each with whether its values are those of one trace, and whether they
    can be operands there: of the function that JAX traces last, they can, but not in a rule for `jax.custom_jvp`, since
    tangents may never have values. Outside of jaxprs all can."""
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
"""What calls rules of the user's for tangents."""


def is_of_traces_here(tracer: core.Tracer) -> bool:
    """Whether a value that is not known yet is of a trace that is under way around what is traced now."""
    trace = core.trace_ctx.trace
    while trace is not None and trace is not tracer._trace:
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def is_being_traced() -> bool:
    """Whether the caller stands in a function that is staged. An interrupt may have left JAX's trace behind: then no
    function of JAX's that traces is being called."""
    frame = sys._getframe() if is_staged() else None
    while frame is not None and frame.f_code.co_filename != pe.__file__:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Calls of jitted functions run now, wherever this is, and look for no NaN."""
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
    """The next calls of a jitted function go through Python; what was traced and compiled is kept."""
    jitted._clear_cache()


def tracers_closed_over(traced: Any) -> list[Any]:
    """The tracers that a traced function found outside of it. They are its first arguments."""
    return list(traced._consts)


def with_flat_arguments(traced: Any) -> Any:
    """A traced function whose arguments are its leaves.

    To describe the arguments of what is lowered JAX makes objects of the user's classes, which may want arrays.
    """
    flat = copy.copy(traced)
    flat._in_tree = jax.tree.structure(((0,) * traced._in_tree.num_leaves, {}))
    return flat


def count_fast_paths(jitted: Any) -> int:
    """For how many kinds of arguments JAX has a fast path of a jitted or compiled function, or makes one: the first
    call does, and others of that kind wait until that call has returned."""
    jitted = jitted._call if isinstance(jitted, jax.stages.Compiled) else jitted
    return jitted._cache_size() if hasattr(jitted, "_cache_size") else 0


def call_beside_fast_paths(jitted: Any) -> Callable[..., Any]:
    """What calls a jitted or compiled function, and neither makes a fast path nor waits for one."""
    jitted = (jitted._call or jitted) if isinstance(jitted, jax.stages.Compiled) else jitted
    if not hasattr(jitted, "_cache_miss"):
        return jitted
    return lambda *args, **kwargs: jitted._cache_miss(*args, **kwargs)[0]


def check_symbolic_scopes(fun: Any, args: Any, kwargs: Any) -> None:
    """Refuses arguments of which one has a size of another symbolic scope, with the error of `jax.export`."""
    _export.check_symbolic_scope_errors(fun, args, kwargs)


launches_take_threads = jax.__version_info__ < (0, 12)
"""Whether XLA launches programs over several CPU devices with the threads that compute. Who brings a device the 33rd
waits, and may have the thread that one of these needs."""


# Tracebacks that show the user's frames only: `jax._src.traceback_util`.

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
    # Of its own files JAX leaves some out only.
    return traceback_util.include_filename(file) and not file.startswith(_OF_JAX)


take_stack = xla_client.Traceback.get_traceback
"""Returns the stack of the calling thread: its lines, and none of its variables."""


def traceback_of(stack: Any) -> types.TracebackType | None:
    """The user's lines of a stack, as a traceback, without the outer ones that it shares with the present stack."""
    lines, present = (
        [(frame.file_name, frame.line_num) for frame in reversed(each.frames)] for each in (stack, take_stack())
    )
    shared = [*itertools.takewhile(lambda both: both[0] == both[1], zip(lines, present, strict=False))]
    made = None
    for each in stack.frames[: len(lines) - len(shared)]:
        if _is_users(each.file_name):
            frame = _frame_at(each.file_name, each.function_name, each.function_start_line, each.line_num)
            made = types.TracebackType(made, frame, -1, each.line_num)  # -1: its columns are not known
    return made


def _frame_at(file: str, function: str, start: int, line: int) -> Any:
    """A frame as it is left where a function has raised at this line."""
    source = "\n" * (start - 1) + "def f():" + "\n" * (line - start) + " 0 / 0"
    [code, *_] = compile(source, file, "exec").co_consts
    try:
        eval(code.replace(co_name=function.rpartition(".")[2], co_qualname=function))
    except ZeroDivisionError as error:
        return error.__traceback__.tb_next.tb_frame  # type: ignore[union-attr]


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
