"""What a failure leaves open: which effects of its program may be missing, and what errors count.

Effects that come after it in its own order domain are left out, and counted. Of what is unordered, and of what is in
another domain, it is not said whether it comes before the failure or after it: domains know nothing of each other.
Whatever is left out is counted, unless the failure has ended the program, which then may not have come to it at all.
Each domain keeps its own order, so that only its last effects may be missing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.oracle.language import DOMAINS, EFFECTS, Case, kinds_of_labels, label_of

if TYPE_CHECKING:
    from tests.oracle.observe import Outcome


def unknown_labels(case: Case, expected: Outcome) -> set[str]:
    """Labels of lines that may come or not, since a failure has ended their program.

    It is not known how far what was unordered has got, nor, if what failed was unordered, how far anything has.
    """
    unknown: set[str] = set()
    failed = {state for state in expected.states if isinstance(state, str)}
    for program in {run.program: None for run in case.runs}:
        kinds = kinds_of_labels(program)
        apart = {label for label, kind in kinds.items() if kind in DOMAINS}
        unordered = {label for label, kind in kinds.items() if not EFFECTS[kind]}
        for label in failed & set(kinds):
            unknown |= {"u"} | (unordered if EFFECTS[kinds[label]] else {"o", *kinds} - apart)
            if expected.ends is None:
                unknown |= apart
    return unknown


def stopped_labels(case: Case, expected: Outcome) -> set[str]:
    """Labels of unordered effects that may be missing, since a failure has stopped the effects of their program."""
    labels = {"u"} if expected.stopped else set()
    for number in expected.stopped:
        labels |= {label for label, kind in kinds_of_labels(case.runs[number].program).items() if not EFFECTS[kind]}
    return labels


def may_count_more(case: Case, expected: Outcome) -> bool:
    """Whether a program that a failure has ended may have come to effects that the failure did not keep it from."""
    ended = [run.program for run, state in zip(case.runs, expected.states, strict=True) if isinstance(state, str)]
    return any(kind in DOMAINS or not EFFECTS[kind] for kind in kinds_of_labels(tuple(ended)).values())


@dataclass(frozen=True)
class _Dispatch:
    """What a dispatch has in other domains."""

    lines: list[str]
    labels: set[str]  # of all such effects of the program
    has_stopped: bool  # whether a failure has stopped its effects
    has_ended: bool  # whether one has ended its program, of which the reading knows no more

    def allows(self, seen: Sequence[str]) -> bool:
        """Whether these may be all that was seen of it."""
        common = min(len(seen), len(self.lines))
        if seen[:common] != self.lines[:common]:
            return False
        if common == len(seen):
            return common == len(self.lines) or self.has_stopped or self.has_ended
        return self.has_ended and all(label_of(line) in self.labels for line in seen[common:])


def settle_domains(case: Case, expected: Outcome, seen: Outcome) -> Outcome:
    """What was expected, with those effects of other domains that were seen where a failure leaves that open.

    If what was seen is not allowed, all of them are expected.
    """
    if expected.ends is None or expected.places is None:
        return expected
    bounds = list(itertools.pairwise((0, *expected.ends)))
    apart = {label for label, kind in kinds_of_labels(case.runs).items() if kind in DOMAINS}
    dispatches = [
        _Dispatch(
            [line for line in expected.lines[start:end] if label_of(line) in apart],
            apart & set(kinds_of_labels(case.runs[number].program)),
            number in expected.stopped,
            isinstance(expected.states[number], str),
        )
        for number, (start, end) in enumerate(bounds)
    ]
    of_dispatches = _attribute(dispatches, [line for line in seen.lines if label_of(line) in apart])
    if of_dispatches is None:
        return expected
    kept, left_out = [], expected.left_out
    for (start, end), dispatch, lines in zip(bounds, dispatches, of_dispatches, strict=True):
        own = [at for at in range(start, end) if label_of(expected.lines[at]) in apart]
        missing = own[len(lines) :]
        kept += [(expected.lines[at], expected.places[at]) for at in range(start, end) if at not in missing]
        kept += [(line, None) for line in lines[len(own) :]]
        left_out += len(missing) * (not dispatch.has_ended)
    return dataclasses.replace(
        expected, lines=[line for line, _ in kept], places=[place for _, place in kept], left_out=left_out
    )


def _attribute(dispatches: Sequence[_Dispatch], seen: Sequence[str]) -> list[Sequence[str]] | None:
    """The lines that were seen of each dispatch, one after the other; None if that cannot be."""
    if not dispatches:
        return None if seen else []
    first, *others = dispatches
    for count in range(len(seen), -1, -1):
        if first.allows(seen[:count]) and (rest := _attribute(others, seen[count:])) is not None:
            return [seen[:count], *rest]
    return None
