"""Which of the effects of a line are shown: what its call asks for, and the level of a logger."""

from __future__ import annotations

import logging
import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from effects import _errors as errors

if TYPE_CHECKING:
    from effects._model.where import Where

MSG_LEVEL = (
    "`{call}` at {where} was given the level {level!r}. A level is a whole number, as for `logging`, or the name that "
    "`logging` has for one. Pass, say, `level=logging.WARNING` or `level='warning'`."
)
MSG_NO_LEVEL = (
    "`{call}` at {where} was given logger={value} and no level. A logger leaves out lines, and of other effects only "
    "what has a level. Add, say, `level='error'`, or leave out `logger=`."
)
MSG_COUNT = (
    "`{call}` at {where} was given {name}={value}. {rule}, and is known while tracing, since the host counts. Pass, "
    "say, `{name}={example}`; for what the program computes there is `when=`, and a field needs another name."
)
MSG_LOGGER = (
    "`{call}` at {where} was given logger={value}. A logger is named by a string that is not empty, as for "
    "`logging.getLogger`. Pass, say, `logger='myapp.model'`."
)
RULE_COUNT = "It is a positive whole number of at most 64 bits"
RULE_SECONDS = "It is a number of seconds, zero or more and finite"

LARGEST_COUNT = 2**64 - 1
"""What native code counts to."""

LOGGER = logging.getLogger("effects")
"""Whose level lines follow that name no other logger."""


class Filter(NamedTuple):
    """What a line's call asks for.

    Attributes:
        level: How much its effects matter. None: they follow no logger, as by default all but lines.
        logger: The name of the logger whose level they follow.
        every: Of how many effects one is shown, the first being one of them.
        first: How many are shown; None: no limit.
        min_seconds: How long after one that was shown no other is.
    """

    level: int | None = None
    logger: str = LOGGER.name
    every: int = 1
    first: int | None = None
    min_seconds: float = 0.0

    def describe(self) -> dict[str, Any]:
        """All of it that is not as by default."""
        return {name: value for name, value in self._asdict().items() if value != Filter._field_defaults[name]}

    def allowed(self, least: int | None = None) -> bool:
        """Whether the level is enough now: for this threshold, or if there is none, for the logger's."""
        return self.level is None or self.level >= (threshold(self.logger) if least is None else least)


ALWAYS = Filter()
"""What is asked for where nothing is."""


OF_LINES = Filter(logging.INFO)
"""The same of lines: prints, events and bars."""


def threshold(name: str) -> int:
    """From which level on a logger takes events now: the level of its own, or of the nearest above it that has one. The
    root's does not count, which has one, `logging.WARNING`, that no program has asked for, nor does `logging.disable`,
    with which notebooks keep libraries quiet."""
    logger: logging.Logger | None = logging.getLogger(name)
    least = 0
    while logger is not None and logger is not logging.root and not (least := logger.level):
        logger = logger.parent
    return least


class _Levels(dict[int, bool]):
    """What a logger knows of levels. Python clears that of all loggers when the level of one has been set, and after
    `logging.disable`. So to be told costs nothing until then."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[], None]] = []

    def clear(self) -> None:
        super().clear()
        for listener in self.listeners:
            listener()


_levels = LOGGER._cache = _Levels()  # type: ignore[attr-defined]


def when_levels_change(listener: Callable[[], None]) -> None:
    """Calls `listener()` when the level of a logger has been set. It must take no lock under which others ask for
    loggers."""
    _levels.listeners.append(listener)


def level_of(level: Any) -> int | None:
    """A level as a number; None if it is none."""
    if isinstance(level, str):
        level = logging.getLevelNamesMapping().get(level.upper())
    return int(level) if is_whole(level) else None  # NumPy's too


def choose(
    call: str,
    where: Where,
    level: Any,
    logger: Any = None,
    every: Any = None,
    first: Any = None,
    min_seconds: Any = None,
    needs_level: bool = True,
) -> Filter:
    """What a call asks for, checked. `needs_level`: it is of a line."""
    if logger is every is first is min_seconds is None:
        if level is None and not needs_level:
            return ALWAYS
        if isinstance(level, str) and level == "info":
            return OF_LINES
    if logger is not None and (not isinstance(logger, str) or not logger):
        raise TypeError(MSG_LOGGER.format(call=call, where=where, value=errors.shown(logger)))
    for name, value, is_right, rule, example in (
        ("every", every, is_count, RULE_COUNT, 100),
        ("first", first, is_count, RULE_COUNT, 100),
        ("min_seconds", min_seconds, _is_time, RULE_SECONDS, 0.5),
    ):
        if value is not None and not is_right(value):
            told = {"name": name, "value": errors.shown(value), "rule": rule, "example": example}
            raise ValueError(MSG_COUNT.format(call=call, where=where, **told))
    number = level_of(level)
    if level is None and not needs_level:
        if logger is not None:
            raise ValueError(MSG_NO_LEVEL.format(call=call, where=where, value=errors.shown(logger)))
    elif number is None:
        raise TypeError(MSG_LEVEL.format(call=call, where=where, level=level))
    most = None if first is None else int(first)
    return Filter(number, logger or LOGGER.name, int(every or 1), most, float(min_seconds or 0))


def is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_whole(value) and 0 < value <= LARGEST_COUNT


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value <= sys.float_info.max
