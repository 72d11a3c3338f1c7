"""Settings, each also an environment variable."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from effects import _removed
from effects._jax import for_users

MSG_SETTING = (
    "The setting {where} was given {value!r}. It takes {expected}. Correct it, or leave it out for the default, "
    "{default!r}."
)
MSG_UNKNOWN_SETTING = "`fx.config` has no setting {name!r}. The settings are {known}. Correct the name."


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"0": False, "false": False, "off": False, "": False, "1": True, "true": True, "on": True}[
        str(value).strip().lower()
    ]


def _choice(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(value)
        return value

    return parse


def _bytes(value: Any) -> int:
    number = _whole(value)
    if not 4096 <= number <= 1 << 40:
        raise ValueError(number)
    return number


def _capacity(value: Any) -> int:
    number = _whole(value)
    if not 1 <= number < 1 << 29:
        raise ValueError(number)
    return number


def _exit_code(value: Any) -> int:
    number = _whole(value)
    if not 0 <= number <= 255:
        raise ValueError(number)
    return number


def _seconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not number >= 0.1:
        raise ValueError(number)
    return number


def _signal(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        value = signal.Signals(_whole(value)).name
    number = signal.Signals["SIG" + value.upper().removeprefix("SIG")]
    if number.name not in ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGWINCH", "SIGTERM", "SIGALRM"):
        raise ValueError(value)  # it has another meaning, or none may answer it
    return number


def _whole(value: Any) -> int:
    """A whole number of any type, or its text."""
    if isinstance(value, bool):
        raise ValueError(value)
    return int(value) if isinstance(value, str) else operator.index(value)


# name -> default, how it is read, what it takes
_SETTINGS: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "sync": (False, _flag, "true or false (in the environment 1 or 0)"),
    "order": ("thread", _choice("thread", "process"), "'thread' or 'process'"),
    "ring_bytes": (1 << 20, _bytes, "a whole number of bytes, at least 4096"),
    "when_full": ("wait", _choice("wait", "drop"), "'wait' or 'drop'"),
    "after_error": ("stop", _choice("stop", "go_on"), "'stop' or 'go_on'"),
    "errors": ("next_call", _choice("next_call", "barrier"), "'next_call' or 'barrier'"),
    "cells": ("wait", _choice("wait", "go_on"), "'wait' or 'go_on'"),
    "bounds_checks": (False, _flag, "true or false (in the environment 1 or 0)"),
    "exit_code": (1, _exit_code, "a whole number from 0 to 255"),
    "jax_effects": (
        "program_order",
        _choice("program_order", "as_written", "jax"),
        "'program_order', 'as_written' or 'jax'",
    ),
    "kernel_log_capacity": (256, _capacity, "a whole number of words, at least 1"),
    "postmortem": (False, _flag, "true or false (in the environment 1 or 0)"),
    "native": (True, _flag, "true or false (in the environment 1 or 0)"),
    "stall_seconds": (10.0, _seconds, "a number of seconds, at least 0.1"),
    "stall_fail_seconds": (30.0, _seconds, "a number of seconds, at least 0.1; `inf` for never"),
    "dump_signal": (None, _signal, "None or the name of a signal, as 'SIGUSR1'"),
    "static_levels": (False, _flag, "true or false (in the environment 1 or 0)"),
    "whole_prints": (False, _flag, "true or false (in the environment 1 or 0)"),
}


class Config:
    """Settings of the library; read and written as attributes, also from environment variables at import.

    - `sync` (`EFFECTS_SYNC`): a barrier after every outermost call of an `fx.jit` function, so that Python's own
      prints and those of programs interleave as written.
    - `order` (`EFFECTS_ORDER`): `"thread"`: every thread's effects are in order, threads are independent.
      `"process"`: one order for all threads, that of their calls. After a change a thread's next call waits until what
      it called before is visible.
    - `ring_bytes` (`EFFECTS_RING_BYTES`): size of the ring in which a producing thread keeps records until they are
      replayed. Counts for threads that have not published yet.
    - `when_full` (`EFFECTS_WHEN_FULL`): what a full ring means. `"wait"`: the program waits, nothing is lost;
      `"drop"`: what finds it full is dropped and counted.
    - `after_error` (`EFFECTS_AFTER_ERROR`): what becomes of a program's effects after one that has failed. `"stop"`: as
      after an exception in Python, none of them is carried out; the error says how many they were. `"go_on"`: they are
      carried out. What is in force when the effect fails counts.
    - `errors` (`EFFECTS_ERRORS`): who raises what an effect has failed with after its call had returned.
      `"next_call"`: the thread's next call of an `fx.jit` function, which then is not made, or a barrier before it;
      `"barrier"`: a barrier alone. Either way the failure is logged if nothing raises it within a second.
    - `cells` (`EFFECTS_CELLS`): when a cell of IPython or of a notebook ends. `"wait"`: when its effects are visible,
      and what they failed with is the cell's error; `"go_on"`: when its code has run.
    - `bounds_checks` (`EFFECTS_BOUNDS_CHECKS`): whether simulated Pallas kernels check every index of a reference, and
      where their blocks begin, as `fx.check` does; compiled ones are refused. After a change functions are traced
      again.
    - `exit_code` (`EFFECTS_EXIT_CODE`): with which the process ends, where it would end with 0, if effects raised what
      no barrier has reported; 0 lets it be.
    - `jax_effects` (`EFFECTS_JAX_EFFECTS`): what `jax.debug.print`, `jax.debug.callback`, `jax.debug.log` and
      `io_callback` are inside `fx.jit`. `"program_order"`: effects like ours, all of them in program order;
      `"as_written"`: effects like ours, in no order without `ordered=True`; `"jax"`: what JAX's transformations make of
      them, in no order without `ordered=True`. Counts for functions traced afterwards.
    - `kernel_log_capacity` (`EFFECTS_KERNEL_LOG_CAPACITY`): how many words of 32 bits the effects of each program of a
      compiled Pallas kernel may take. An effect takes one, and its arrays one for each element of 32 bits or fewer.
      What does not fit is dropped, with a warning that says how many words it takes. Counts for functions traced
      afterwards.
    - `postmortem` (`EFFECTS_POSTMORTEM`): whether a program waits where an `fx.error_if` or an `fx.check` is about to
      fail, or behind an operation that an `fx.watch` will name, as at an `fx.breakpoint`. Counts for functions traced
      afterwards.
    - `native` (`EFFECTS_NATIVE`): whether programs record with native code; without, through JAX's Python callbacks, as
      on platforms without a native handler. Counts for programs lowered afterwards.
    - `stall_seconds` (`EFFECTS_STALL_SECONDS`): how long nothing must have been published, replayed, answered or
      computed, while something waits, before the log says what waits.
    - `stall_fail_seconds` (`EFFECTS_STALL_FAIL_SECONDS`): how long, before the youngest program that waits for a
      callback is ended, if all callbacks that run wait for what JAX computes on CPUs; `inf` for never. A callback that
      takes long by itself is never ended.
    - `dump_signal` (`EFFECTS_DUMP_SIGNAL`): the signal, as `"SIGUSR1"`, on which the process says on standard error
      what waits; None for none.
    - `static_levels` (`EFFECTS_STATIC_LEVELS`): whether an effect of a level that its logger does not take when it is
      traced becomes no part of the program. It costs nothing then, and stays out when the level is lowered.
    - `whole_prints` (`EFFECTS_WHOLE_PRINTS`): whether `builtins.print` is replaced, once a program with effects has
      been compiled, by one that writes the text of a call at once, so that lines of effects never come in between.
      Python's writes each argument by itself.

    Example:
        >>> import effects as fx
        >>> with fx.config.override(sync=True):
        ...     fx.config.sync
        True
    """

    __slots__ = ("_listeners", *_SETTINGS)

    _listeners: list[Callable[[Config], None]]
    sync: bool
    order: str
    ring_bytes: int
    when_full: str
    after_error: str
    errors: str
    cells: str
    bounds_checks: bool
    exit_code: int
    jax_effects: str
    kernel_log_capacity: int
    postmortem: bool
    native: bool
    stall_seconds: float
    stall_fail_seconds: float
    dump_signal: int | None
    static_levels: bool
    whole_prints: bool

    def __init__(self, environ: dict[str, str] | os._Environ[str]):
        object.__setattr__(self, "_listeners", [])
        _removed.refuse_variables(environ)
        for name, (default, _, _) in _SETTINGS.items():
            variable = f"EFFECTS_{name.upper()}"
            value = environ.get(variable)
            self._set(name, default if value is None else value, f"`{variable}` in the environment")

    def _set(self, name: str, value: Any, where: str) -> None:
        if name not in _SETTINGS:
            raise self._unknown(name)
        default, parse, expected = _SETTINGS[name]
        try:
            parsed = parse(value)
        except (ValueError, KeyError, TypeError):
            raise ValueError(MSG_SETTING.format(where=where, value=value, expected=expected, default=default)) from None
        object.__setattr__(self, name, parsed)
        for listener in self._listeners:
            listener(self)

    @for_users
    def __setattr__(self, name: str, value: Any) -> None:
        self._set(name, value, f"`fx.config.{name}`")

    if not TYPE_CHECKING:  # type checkers would take it to have every name

        def __getattr__(self, name: str) -> Any:
            raise self._unknown(name)

    @staticmethod
    def _unknown(name: str) -> AttributeError:
        text = MSG_UNKNOWN_SETTING.format(name=name, known=", ".join(_SETTINGS))
        return AttributeError(_removed.message(f"fx.config.{name}") or text)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in _SETTINGS)})"

    @contextlib.contextmanager
    def override(self, **settings: Any) -> Iterator[None]:
        """Settings for the time of a `with` block.

        Example:
            >>> import effects as fx
            >>> with fx.config.override(order="process"):
            ...     fx.config.order
            'process'
        """
        before = {name: getattr(self, name) for name in settings if name in _SETTINGS}
        try:
            for name, value in settings.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def listen(self, listener: Callable[[Config], None]) -> None:
        """Calls `listener` now and after every change."""
        self._listeners.append(listener)
        listener(self)


config: Config = Config(os.environ)
