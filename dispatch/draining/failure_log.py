"""Reporting failures without raising them. A program may go on for long before a call or a barrier raises its failure,
so the failure is logged when it happens; at the end of the process those are chosen that nothing has raised."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from effects import _errors as errors
from effects._api.log import LOGGER

NOTE_LIKE_IT = "{more} at this line failed with an error of this type too."


def log_failure(failure: BaseException) -> None:
    """Logs what an effect failed with at the user's line, with its cause. Raises nothing.

    The record has the attributes of `EffectError`, as far as they are known.
    """
    of = failure if isinstance(failure, errors.EffectError) else errors.EffectError()
    file, _, line = of.where.rpartition(":")
    known = {name: getattr(of, name) for name in ("where", "function", "effect", "device", "lane", "token")}
    place = [f"{name} {'.'.join(map(str, known[name]))}" for name in ("lane", "token") if known[name]]
    text = f"{failure} ({', '.join(place)})" if place else str(failure)
    cause = failure.__cause__
    caused = (type(cause), cause, cause.__traceback__) if cause is not None and not _is_one_line(failure) else None
    try:
        if LOGGER.isEnabledFor(logging.ERROR):
            made = LOGGER.makeRecord(
                LOGGER.name, logging.ERROR, file, int(line or 0), text, (), caused, known["function"], known
            )
            LOGGER.handle(made)
    except BaseException as error:  # a handler's: whoever is given the failure shall know
        failure.add_note(f"It could not be logged: {errors.shown(error)}.")


def log_warnings(texts: Iterable[str]) -> None:
    """Logs what fails no program."""
    for text in texts:
        LOGGER.warning(text)


def _is_one_line(failure: BaseException) -> bool:
    """Whether the line that was logged says all of it: the reader of a pipe has gone away."""
    cause = failure.__cause__
    return isinstance(cause, BrokenPipeError) and cause.__traceback__ is None


def first_of_each_line(failures: Iterable[BaseException]) -> list[BaseException]:
    """The first of those that effects at one line failed with, by the type of the cause. It says how many these are."""
    first: dict[Any, BaseException] = {}
    count: Counter[Any] = Counter()
    for failure in failures:
        if _is_one_line(failure):
            continue
        kind: Any = id(failure)
        if isinstance(failure, errors.EffectError) and failure.where:
            kind = failure.where, failure.function, type(failure), type(failure.__cause__)
        first.setdefault(kind, failure)
        count[kind] += 1
    for kind, failure in first.items():
        if count[kind] > 1:
            failure.add_note(NOTE_LIKE_IT.format(more=errors.counted(count[kind] - 1, "more effect")))
    return [*first.values()]
