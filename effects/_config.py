"""Settings, each also an environment variable."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from effects import _errors as errors
from effects import _removed
from effects._jax import for_users

_PAGE = "docs/reference/settings.md"
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
    """Reads a whole number of any type, or its text."""

    def parse(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError(value)
        number = int(value) if isinstance(value, str) else operator.index(value)
        if not least <= number <= most:
            raise ValueError(number)
        return number

    return parse


def _seconds(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not number >= 0.1:
        raise ValueError(number)
    return number


# name -> default, parser, description of valid values
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
    - `when_full` (`EFFECTS_WHEN_FULL`): the policy for a full ring. `"wait"`: the program waits, nothing is lost;
      `"drop"`: records that find the ring full are dropped and counted.
    - `after_error` (`EFFECTS_AFTER_ERROR`): the policy for a program's effects after a failed one. `"stop"`: as after
      an exception in Python, none of them is carried out, and the error gives their number. `"go_on"`: they are carried
      out. The setting at the time of the failure counts.
    - `errors` (`EFFECTS_ERRORS`): the call that raises an effect's failure, if the program's call has returned.
      `"next_call"`: the thread's next call of an `fx.jit` function, which then is not made, or a barrier before it;
      `"barrier"`: a barrier alone. Either way the failure is logged if nothing raises it within a second.
    - `bounds_checks` (`EFFECTS_BOUNDS_CHECKS`): true if simulated Pallas kernels check every index of a reference and
      the bounds of their blocks, as `fx.check` does; compiled kernels are refused. After a change functions are traced
      again.
    - `exit_code` (`EFFECTS_EXIT_CODE`): the exit code of a process that would end with 0, if effects have failed and no
      barrier has raised their errors; 0 leaves the exit code alone.
    - `jax_effects` (`EFFECTS_JAX_EFFECTS`): the meaning of `jax.debug.print`, `jax.debug.callback`, `jax.debug.log` and
      `io_callback` inside `fx.jit`. `"program_order"`: effects like ours, all of them in program order; `"jax"`: as in
      JAX, also under its transformations, and in no order without `ordered=True`. Counts for functions traced
      afterwards.
    - `native` (`EFFECTS_NATIVE`): true if programs record with native code; else they use JAX's Python callbacks, as on
      platforms without a native handler. Counts for programs lowered afterwards.
    - `stall_seconds` (`EFFECTS_STALL_SECONDS`): the time without any record, replay, reply or computation, while
      something waits, after which the log says what waits.
    - `stall_fail_seconds` (`EFFECTS_STALL_FAIL_SECONDS`): the time after which the youngest program that waits for a
      callback is ended, if all running callbacks wait for computations of JAX on CPUs; `inf` for never. A callback that
      is only slow is never ended.

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
            raise errors.value_error(_removed.message(f'fx.config.{name}="{value}"') or text) from None
        object.__setattr__(self, name, parsed)
        for listener in self._listeners:
            listener(self)

    @for_users
    def __setattr__(self, name: str, value: Any) -> None:
        self._set(name, value, f"`fx.config.{name}`")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"A setting always has a value. In place of `del`, write `fx.config.{name} = ...`.")

    if not TYPE_CHECKING:  # else type checkers would accept every name

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
        """Changes settings for the duration of a `with` block.

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
