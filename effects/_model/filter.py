"""Filters: a call's own settings and the level of a logger decide which effects of a line are shown."""

from __future__ import annotations

import logging
import numbers
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from effects import _errors as errors

if TYPE_CHECKING:
    from effects._model.where import Where

_PAGE = "docs/how-to/filters.md"
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
"""The largest count of native code."""

LOGGER = logging.getLogger("effects")
"""The logger whose level applies to lines that name no other logger."""


class Filter(NamedTuple):
    """The filter of a line's call.

    Attributes:
        level: The level of its effects. None: no logger applies, the default of all but prints, events and bars.
        logger: The name of the logger whose level applies.
        every: One of this many effects is shown, beginning with the first.
        first: The maximum number of effects shown; None: no limit.
        min_seconds: The minimum time between two effects that are shown.
    """

    level: int | None = None
    logger: str = LOGGER.name
    every: int = 1
    first: int | None = None
    min_seconds: float = 0.0

    def describe(self) -> dict[str, Any]:
        """The fields that do not have their defaults."""
        return {name: value for name, value in self._asdict().items() if value != Filter._field_defaults[name]}

    def allowed(self, least: int | None = None) -> bool:
        """True if the level now reaches this threshold, or if it is None the logger's."""
        return self.level is None or self.level >= (threshold(self.logger) if least is None else least)


ALWAYS = Filter()
"""The filter of a call that sets none."""


OF_LINES = Filter(logging.INFO)
"""The default filter of lines: prints, events and bars."""


def threshold(name: str) -> int:
    """The lowest level that a logger takes now: its own level, or that of its nearest ancestor that has one. The root
    logger is ignored, since no user has set its default, `logging.WARNING`. `logging.disable` is ignored, since
    notebooks call it to keep libraries quiet."""
    logger: logging.Logger | None = logging.getLogger(name)
    least = 0
    while logger is not None and logger is not logging.root and not (least := logger.level):
        logger = logger.parent
    return least


class _Levels(dict[int, bool]):
    """A logger's cache of enabled levels, which tells listeners when it is cleared. `logging` clears the caches of all
    loggers when the level of one has been set, and after `logging.disable`. So listening costs nothing until then."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[], None]] = []

    def clear(self) -> None:
        super().clear()
        for listener in self.listeners:
            listener()


_levels = LOGGER._cache = _Levels()  # type: ignore[attr-defined]


def when_levels_change(listener: Callable[[], None]) -> None:
    """Calls `listener()` when the level of a logger has been set. The listener must not take a lock under which other
    threads call `logging.getLogger`: `logging` holds its own lock meanwhile, so that this could deadlock."""
    _levels.listeners.append(listener)


def level_of(level: Any) -> int | None:
    """A level as a number; None if the value is not a level."""
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
    """The filter of a call, checked. `needs_level`: True for lines, which always have a level."""
    if logger is every is first is min_seconds is None:
        if level is None and not needs_level:
            return ALWAYS
        if isinstance(level, str) and level == "info":
            return OF_LINES
    if logger is not None and (not isinstance(logger, str) or not logger):
        raise errors.type_error(MSG_LOGGER.format(call=call, where=where, value=errors.shown(logger)))
    for name, value, is_right, rule, example in (
        ("every", every, is_count, RULE_COUNT, 100),
        ("first", first, is_count, RULE_COUNT, 100),
        ("min_seconds", min_seconds, _is_time, RULE_SECONDS, 0.5),
    ):
        if value is not None and not is_right(value):
            told = {"name": name, "value": errors.shown(value), "rule": rule, "example": example}
            raise errors.value_error(MSG_COUNT.format(call=call, where=where, **told))
    number = level_of(level)
    if level is None and not needs_level:
        if logger is not None:
            raise errors.value_error(MSG_NO_LEVEL.format(call=call, where=where, value=errors.shown(logger)))
    elif number is None:
        raise errors.type_error(MSG_LEVEL.format(call=call, where=where, level=level))
    most = None if first is None else int(first)
    return Filter(number, logger or LOGGER.name, int(every or 1), most, float(min_seconds or 0))


def is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_whole(value) and 0 < value <= LARGEST_COUNT


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and 0 <= value <= sys.float_info.max
