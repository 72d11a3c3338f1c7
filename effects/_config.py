"""Settings, each also an environment variable."""

from __future__ import annotations

import contextlib
import operator
import os
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


def _between(least: int, most: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if not least <= (number := _whole(value)) <= most:
            raise ValueError(number)
        return number

    return parse


def _seconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not number >= 0.1:
        raise ValueError(number)
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
    "ring_bytes": (1 << 20, _between(4096, 1 << 40), "a whole number of bytes, at least 4096"),
    "when_full": ("wait", _choice("wait", "drop"), "'wait' or 'drop'"),
    "after_error": ("stop", _choice("stop", "go_on"), "'stop' or 'go_on'"),
    "errors": ("next_call", _choice("next_call", "barrier"), "'next_call' or 'barrier'"),
    "bounds_checks": (False, _flag, "true or false (in the environment 1 or 0)"),
    "exit_code": (1, _between(0, 255), "a whole number from 0 to 255"),
    "jax_effects": ("program_order", _choice("program_order", "jax"), "'program_order' or 'jax'"),
    "native": (True, _flag, "true or false (in the environment 1 or 0)"),
    "stall_seconds": (10.0, _seconds, "a number of seconds, at least 0.1"),
    "stall_fail_seconds": (30.0, _seconds, "a number of seconds, at least 0.1; `inf` for never"),
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
    - `bounds_checks` (`EFFECTS_BOUNDS_CHECKS`): whether simulated Pallas kernels check every index of a reference, and
      where their blocks begin, as `fx.check` does; compiled ones are refused. After a change functions are traced
      again.
    - `exit_code` (`EFFECTS_EXIT_CODE`): with which the process ends, where it would end with 0, if effects raised what
      no barrier has reported; 0 lets it be.
    - `jax_effects` (`EFFECTS_JAX_EFFECTS`): what `jax.debug.print`, `jax.debug.callback`, `jax.debug.log` and
      `io_callback` are inside `fx.jit`. `"program_order"`: effects like ours, all of them in program order; `"jax"`:
      what JAX's transformations make of them, in no order without `ordered=True`. Counts for functions traced
      afterwards.
    - `native` (`EFFECTS_NATIVE`): whether programs record with native code; without, through JAX's Python callbacks, as
      on platforms without a native handler. Counts for programs lowered afterwards.
    - `stall_seconds` (`EFFECTS_STALL_SECONDS`): how long nothing must have been published, replayed, answered or
      computed, while something waits, before the log says what waits.
    - `stall_fail_seconds` (`EFFECTS_STALL_FAIL_SECONDS`): how long, before the youngest program that waits for a
      callback is ended, if all callbacks that run wait for what JAX computes on CPUs; `inf` for never. A callback that
      takes long by itself is never ended.

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
    bounds_checks: bool
    exit_code: int
    jax_effects: str
    native: bool
    stall_seconds: float
    stall_fail_seconds: float

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
            text = MSG_SETTING.format(where=where, value=value, expected=expected, default=default)
            raise ValueError(_removed.message(f'fx.config.{name}="{value}"') or text) from None
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
