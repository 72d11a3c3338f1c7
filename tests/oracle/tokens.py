"""Where records stand in the order: what the reading says of each line, and whether the tokens of records say the same.

Texts alone do not show everything. Two effects of one line may change places, a lane may be said to be another, and
records may have numbers by which processes' logs could not be merged, all without a line that is wrong.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.internals import wire
from tests.oracle.language import DOMAINS, EFFECTS, PROGRAM_DOMAIN, Program, is_native, kinds_of_labels, statements
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.control import Cond, Fori, Switch, While
from tests.oracle.statements.derivatives import Derivative
from tests.oracle.statements.effects import Check, Filtered, Log

if TYPE_CHECKING:
    from tests.oracle.observe import Outcome


@dataclass(frozen=True)
class Place:
    """Where the record of a line should stand."""

    dispatch: int
    domain: str  # "" of an unordered one
    index: int  # of all effects that happen in this domain of this dispatch, from 0 on
    is_exact: bool  # whether the record's index is that, too: not where effects count that no lane has
    lane: tuple[int, ...]
    grid: tuple[int, ...] | None = None  # in a kernel: which program of its grid
    may_step: bool = False  # whether it may be of another record than the one before, although it need not


@dataclass(frozen=True)
class Seen:
    """What a record says of itself."""

    token: tuple[int, ...]
    lane: tuple[int, ...]
    device: int
    ordered: bool
    grid: tuple[int, ...] | None = None

    @property
    def thread(self) -> int:
        return wire.thread_of(self.token[wire.STREAM])

    @property
    def domain(self) -> int:
        return self.token[wire.STREAM] & ((1 << wire.DOMAIN_BITS) - 1)

    @property
    def is_nested(self) -> bool:
        """Whether a function that a drain thread ran has issued it."""
        return self.thread >= wire.FIRST_NESTED_THREAD


def seen_of(record: Any) -> Seen:
    return Seen(tuple(record.token), tuple(record.lane), record.device, record.ordered, record.grid)


class Notes:
    """The places of a reading's lines, noted as they are written."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.places: list[Place | None] = []  # of each line; None: of a function of the user's, or of what it called
        self._lines = lines
        self._kinds: dict[str, str] = {}
        self._dispatch = 0
        self._is_exact = True
        self._counts: collections.Counter[str] = collections.Counter()
        self._last: dict[str, Any] = {}  # by domain: the position

    def begin(self, program: Program, dispatch: int, has_logs: bool = False) -> None:
        """What is written from now on is of this dispatch. A kernel's log counts, whether it has effects or not."""
        self._kinds, self._dispatch = kinds_of_labels(program), dispatch
        self._is_exact = not (has_logs or _skips(program))
        self._counts.clear()
        self._last.clear()

    def note(
        self, label: str, lane: tuple[int, ...], position: Any = None, grid: tuple[int, ...] | None = None
    ) -> None:
        """Something has happened. What it has written first is its own, and the rest is of what it has called.

        Lanes at one position have one record between them, but those of a native call, which are calls of their own. So
        do the effects of a kernel that writes a log.
        """
        written = len(self._lines) - len(self.places)
        if not written:
            return
        kind = self._kinds.get(label.split(".", 1)[0], "ordered")
        domain = DOMAINS.get(kind, PROGRAM_DOMAIN) if EFFECTS[kind] else ""
        if position is None or is_native(kind) or self._last.get(domain) != position:
            self._counts[domain] += 1
        self._last[domain] = position
        if is_native(kind):
            lane = ()  # a call of the handler does not know its lane
        if kind == "async_host":  # its line is of what it has called
            self.places += [None] * written
            return
        place = Place(
            *(self._dispatch, domain, self._counts[domain] - 1, self._is_exact, lane, grid),
            may_step=position is not None and position[0] == "logs",
        )
        self.places += [place, *[None] * (written - 1)]


def _skips(program: Program) -> bool:
    """Whether there may be effects that count although they are not shown, or no lane has them: lanes that take
    branches of their own."""
    if leaves_out(program):
        return True
    has_lanes = any(isinstance(s, Vmap | Derivative) for s in statements(program))
    return has_lanes and any(
        isinstance(s, Cond | Switch | While | Check) or (isinstance(s, Fori) and not isinstance(s.trips, int))
        for s in statements(program)
    )


def leaves_out(tree: object) -> bool:
    """Whether there are effects with filters, or of a level that is not shown."""
    return any(isinstance(s, Filtered) or (isinstance(s, Log) and s.level == "DEBUG") for s in statements(tree))


def compare_places(
    expected: Outcome, seen: Outcome, is_unordered: Callable[[str], bool], has_stopped_calls: bool = False
) -> list[str]:
    """What is wrong with the tokens of records, if their lines are right.

    Args:
      expected: of the reading, with the place of each line.
      seen: of the library, with the record of each line.
      is_unordered: whether a line of this text may stand anywhere.
      has_stopped_calls: whether a failure has stopped callbacks whose records are there.
    """
    assert expected.places is not None and seen.tokens is not None
    wanted = list(zip(expected.lines, expected.places, strict=True))
    got = list(zip(seen.lines, seen.tokens, strict=True))
    complaints: list[str] = []
    of_dispatches: dict[int, tuple[int, int]] = {}  # the thread and the epoch of each

    def check_epoch(line: str, place: Place, record: Seen) -> None:
        epoch = record.thread, record.token[wire.EPOCH]
        if of_dispatches.setdefault(place.dispatch, epoch) != epoch:
            complaints.append(f"{line!r} of dispatch {place.dispatch} has the epoch {epoch}, and others have another")

    for domain in sorted({place.domain for _, place in wanted if place is not None} - {""}):
        own = [(line, place) for line, place in wanted if place is not None and place.domain == domain]
        pairs = list(_paired(own, got))
        if len(pairs) != len(own):
            complaints.append(f"of {len(own)} records of the domain {domain} only {len(pairs)} were found in order")
        before: dict[int, tuple[Place, Seen]] = {}
        numbers = set()
        for line, place, record in pairs:
            check_epoch(line, place, record)
            numbers.add((place.dispatch, record.domain))
            index = record.token[wire.INDEX]
            last, last_record = before.get(place.dispatch, (None, None))
            if (
                (record.lane, record.grid) != (place.lane, place.grid)
                or not record.ordered
                or record.token[wire.PHASE] != 0
            ):
                complaints.append(f"{line!r} should be {place} and is {record}")
            if place.is_exact and index != place.index:
                complaints.append(f"{line!r} should have the index {place.index} and has {index}: {record}")
            if last is not None and last_record is not None:
                step, expected_step = index - last_record.token[wire.INDEX], place.index - last.index
                if step < expected_step or (expected_step == 0 and step != 0 and not place.may_step):
                    complaints.append(f"{line!r} comes {step} behind the one before it and should come {expected_step}")
            before[place.dispatch] = place, record
        if len(numbers) != len({dispatch for dispatch, _ in numbers}):
            complaints.append(f"records of the domain {domain} have several numbers of domains: {sorted(numbers)}")
    epochs = [of_dispatches[dispatch] for dispatch in sorted(of_dispatches)]
    if epochs != sorted(set(epochs)) or len({thread for thread, _ in epochs}) > 1:
        complaints.append(f"dispatches have the epochs {epochs}")
    stopped = bool(expected.stopped)
    complaints += _compare_counts(wanted, got, of_dispatches, is_unordered, stopped, stopped or has_stopped_calls)
    return complaints


def _paired(wanted: Iterable[tuple[str, Place]], got: Iterable[tuple[str, Seen]]) -> Iterable[tuple[str, Place, Seen]]:
    """Each line with its record: the next one of the same text that is ordered and of no nested stream."""
    rest = iter([(line, record) for line, record in got if record.ordered and not record.is_nested])
    for line, place in wanted:
        for other, record in rest:
            if other == line:
                yield line, place, record
                break


def _compare_counts(
    wanted: Sequence[tuple[str, Place | None]],
    got: Sequence[tuple[str, Seen]],
    of_dispatches: dict[int, tuple[int, int]],
    is_unordered: Callable[[str], bool],
    stopped: bool,
    has_stopped_calls: bool,
) -> list[str]:
    """Unordered records, and those of nested streams, are as many as they should be in each dispatch and lane.

    `stopped`: whether a failure has stopped the effects of a program. `has_stopped_calls`: whether it may have stopped
    callbacks.
    """
    names = {epoch: dispatch for dispatch, epoch in of_dispatches.items()}

    def name(record: Seen) -> Any:
        epoch = record.thread, record.token[wire.EPOCH]
        return names.get(epoch)

    complaints = []
    expected = collections.Counter(
        (line, place.lane, place.grid, place.dispatch if place.dispatch in of_dispatches else None)
        for line, place in wanted
        if place is not None and not place.domain and is_unordered(line)
    )
    found = collections.Counter(
        (line, record.lane, record.grid, name(record))
        for line, record in got
        if not record.is_nested and not record.ordered and is_unordered(line)
    )
    for what in sorted(expected.keys() | found.keys(), key=repr):
        # Where a failure has stopped effects, it is not known which unordered ones had come before it.
        if expected[what] != found[what] and not (stopped and expected[what] > found[what]):
            complaints.append(f"the unordered record {what} was seen {found[what]} times, not {expected[what]}")
    nested = sum(place is None for _, place in wanted)
    seen_nested = sum(record.is_nested for _, record in got)
    # An unordered callback that a failure has stopped dispatches nothing either.
    if nested != seen_nested and not (has_stopped_calls and nested > seen_nested):
        complaints.append(f"{seen_nested} records are of nested streams, and {nested} should be")
    return complaints
