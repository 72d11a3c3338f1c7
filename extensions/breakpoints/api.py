"""Breakpoints in compiled programs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects._model.callback import HostCall
from effects._model.effect import PROGRAM, Effect, register_effect
from effects._model.function import HostFunction
from effects._model.operand import Operand, take_arguments
from effects._model.primitive import bind_where
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where

ENDED = "The user ended the program at {call} ({place})."
INTERRUPTED = "Ctrl-C ended the program at {call}."

BREAKPOINT = register_effect(Effect("breakpoint", domain=PROGRAM))

MOST_FRAMES = 32
"""The most frames of the user's that are kept: a recursive function may have any number."""

_NOTHING = Operand((), np.dtype(np.int32), np.dtype(np.int32))


class _Stop(HostCall):
    """The callback of a breakpoint, in which a program waits."""

    raises_itself = True

    def text(self, record: Record) -> str:
        return self.title


@_jax.for_users
def breakpoint(when: Any = None) -> None:
    """The program waits here, on all its devices, until the user continues.

    A prompt shows the user's line. It takes expressions of the names of the function, and commands: `p` and `pp` show
    values, `a` all of them, `u` and `d` go up and down the frames, `w` or `bt` shows them, `l` the source, `c` goes on,
    and `q` ends the program, whose call raises `EffectError`. So does the end of the input. Ctrl-C ends it with
    `KeyboardInterrupt`.

    The prompt is shown in a terminal, in a notebook, or in a test, whose output is not captured meanwhile. Without any
    of these there is a warning, and the program continues. Effects that come before are visible, and those that come
    after wait. Under `vmap` each lane waits separately, and so does each device in a `jax.shard_map`.

    Values that the program computes are those of the function that is traced: outer functions of a loop's body, say,
    show them where the body uses them. Of objects other than arrays, numbers, text and pytrees of these, the type is
    shown.

    Args:
        when: A boolean, which the program may compute: where it is false the program does not wait.

    Raises:
        TypeError: while tracing, if `when` is no boolean.

    Example:
        >>> import effects as fx
        >>> @fx.jit
        ... def step(x):
        ...     y = 2 * x
        ...     fx.breakpoint(when=y < 0)
        ...     return y
        >>> step(1)
        Array(2, dtype=int32, weak_type=True)
    """
    _stop(when)


def _stop(when: Any, at_most: int = MOST_FRAMES) -> None:
    """Makes the program wait at the user's line, where `when` holds."""
    from effects.extensions.breakpoints.frames import take_frames

    frames, values = take_frames(sys._getframe(), at_most)
    where = Where(frames[0].file, frames[0].line, frames[0].function)
    operands, leaves, tree = take_arguments(tuple(values), {}, "fx.breakpoint", where)

    def wait(*operands: Any, record: Record) -> np.int32:
        _ask([each.of_program(operands) for each in frames], record)
        return np.int32(0)

    content = _Stop(HostFunction(wait, name="fx.breakpoint"), (_NOTHING,), jax.tree.structure(0), pass_record=True)
    bind_where(when, operands, Site(BREAKPOINT, content, leaves, tree, where), "fx.breakpoint")


def _ask(frames: list[Any], record: Record) -> None:
    from effects.extensions.breakpoints.prompt import ask  # imported late: few programs need it

    device = (record.device,) if record.device >= 0 and jax.device_count() > 1 else ()
    shown = [*map(errors.numbered, ("lane", "device", "grid index"), (record.lane, device, record.grid or ()))]
    title, call = ", ".join(filter(None, shown)), f"`fx.breakpoint` at {record.where}"
    try:
        if ask(frames, title, call):
            return
    except KeyboardInterrupt:
        raise KeyboardInterrupt(INTERRUPTED.format(call=call)) from None
    place = ", ".join(filter(None, [f"in `{record.where.function}`", *shown]))
    failure = errors.EffectError(ENDED.format(call=call, place=place))
    failure.where, failure.effect, failure.token = str(record.where), record.effect, record.token
    failure.lane, failure.device = record.lane, record.device
    raise failure


@patches.implements("jax.debug.breakpoint")
def _stopping(breakpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(breakpoint)
    def stop_here(*, num_frames: int | None = None, ordered: bool = False, **options: Any) -> Any:
        if not _jax.binding_callbacks.value or _jax.is_left_to_jax() or options:
            return breakpoint(num_frames=num_frames, ordered=ordered, **options)
        _stop(None, at_most=num_frames or MOST_FRAMES)

    stop_here.__module__ = __name__
    return stop_here
