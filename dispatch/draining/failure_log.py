"""Reporting failures without raising them, and many at one line as one. A program may go on for long before a call or a
barrier raises its failure, so the failure is logged meanwhile."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable

from effects import _errors as errors
from effects._api.log import LOGGER

SourceLine = tuple[str, str, type]
"""The line of a failure in the user's source, the jitted function, and its type."""


_numbers = itertools.count()


def log_failure(failure: BaseException) -> None:
    """Logs what an effect failed with at the user's line, with its cause. Raises nothing.

    The record has the attributes of `EffectError`, as far as they are known.
    """
    of = failure if isinstance(failure, errors.EffectError) else errors.EffectError()
    file, line = re.fullmatch(r"(.*?)(?:(?::|, line )(\d+))?", of.where).groups()  # type: ignore[union-attr]
    known = {name: getattr(of, name) for name in ("where", "function", "effect", "device", "lane", "token")}
    cause = failure.__cause__
    caused = (type(cause), cause, cause.__traceback__) if cause is not None and not is_one_line(failure) else None
    try:
        if LOGGER.isEnabledFor(logging.ERROR):
            made = LOGGER.makeRecord(
                LOGGER.name, logging.ERROR, file, int(line or 0), str(failure), (), caused, known["function"], known
            )
            LOGGER.handle(made)
    except BaseException as error:  # a handler's: whoever is given the failure shall know
        failure.add_note(f"It could not be logged: {errors.shown(error)}.")


def log_warnings(texts: Iterable[str]) -> None:
    """Logs what fails no program."""
    for text in texts:
        LOGGER.warning(text)


def is_one_line(failure: BaseException) -> bool:
    """Whether its text says all of it: the reader of a pipe has gone away."""
    cause = failure.__cause__
    return isinstance(cause, BrokenPipeError) and cause.__traceback__ is None


def line_of(failure: BaseException) -> SourceLine:
    """The line of a failure."""
    of = failure if isinstance(failure, errors.EffectError) else errors.EffectError()
    return of.where, of.function, type(failure)


def first_of_each_line(failures: Iterable[BaseException]) -> list[BaseException]:
    """The first of those that effects at one line failed with, which stands for the others there and has their notes,
    each once."""
    lines: dict[SourceLine | int, list[BaseException]] = {}
    for failure in failures:
        if isinstance(failure, errors.EffectError):
            failure._number = next(_numbers)
        line = line_of(failure)
        lines.setdefault(line if line[0] else id(failure), []).append(failure)
    for first, *others in lines.values():
        if isinstance(first, errors.EffectError):
            first._others = tuple(failure for failure in others if isinstance(failure, errors.EffectError))
        notes = [note for failure in (first, *others) for note in getattr(failure, "__notes__", ())]
        for note in dict.fromkeys(notes[len(getattr(first, "__notes__", ())) :]):
            first.add_note(note)
    return [first for first, *_ in lines.values()]
