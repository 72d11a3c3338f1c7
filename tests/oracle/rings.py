"""Cases with rings so small that they fill: what may be lost, and that nothing else is.

A thread that begins has a ring of the size that is set then. Where a full ring drops records, the output is held while
programs are called, so that the drain stands still and rings do fill.
"""

from __future__ import annotations

import collections
import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tests.oracle.language import Case, T, statements
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.derivatives import Derivative
from tests.oracle.tokens import Seen

if TYPE_CHECKING:
    from tests.oracle.observe import Outcome

RINGS = ("wait", "drop")
"""What is done about a full ring, as the setting `when_full` has it."""

KEEPS_ALL = frozenset(
    {"callback", "record", "nested", "failures", "check", "async", "grid_order", "cores", "filters", "switches"}
)
"""What a case is without whose records may be dropped: what a function that is not called would have done, and what
leaves no line, and a kernel's log, which is one record."""


def drops(case: Case) -> bool:
    return case.rings.startswith("drop")


class HeldOutput(io.StringIO):
    """An output that takes nothing before it is released."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        self._released = threading.Event()
        if not held:
            self._released.set()

    def write(self, text: str) -> int:
        self._released.wait()
        return super().write(text)

    def release(self) -> None:
        self._released.set()


@contextlib.contextmanager
def in_force(case: Case) -> Iterator[None]:
    """The settings of the case."""
    if not case.rings:
        yield
        return
    import effects as fx

    with fx.config.override(ring_bytes=4096, when_full=case.rings):
        yield


def count_dropped() -> int:
    """How many records have been dropped since the process began."""
    import effects as fx

    return fx.stats()["dropped"]


def in_new_thread(run: Callable[[], T]) -> T:
    """Runs a function in a thread of its own, which has a ring of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def compare_dropped(
    case: Case, expected: Outcome, seen: Outcome, is_unordered: Callable[[str], bool], domain_of: Callable[[str], str]
) -> list[str]:
    """What is wrong with what is left of a case whose records may be dropped: it must keep its order, and what is not
    there must have been counted."""
    complaints = []
    if expected.states != seen.states:
        complaints.append(f"dispatches returned {seen.states} and should have returned {expected.states}")
    for domain in sorted({*map(domain_of, expected.lines), *map(domain_of, seen.lines)}):
        want, got = (
            [line for line in lines if not is_unordered(line) and domain_of(line) == domain]
            for lines in (expected.lines, seen.lines)
        )
        rest = iter(want)
        if not all(line in rest for line in got):  # each behind the one before it
            complaints.append(f"the lines {got} are not {want} without some of them")
    want, got = (collections.Counter(filter(is_unordered, lines)) for lines in (expected.lines, seen.lines))
    complaints += [f"{line!r} was seen {got[line]} times, not {want[line]}" for line in got if got[line] > want[line]]
    missing = len(expected.lines) - len(seen.lines)
    has_lanes = any(isinstance(s, Vmap | Derivative) for run in case.runs for s in statements(run.program))
    # With lanes a record is several lines, or none where it is one that no lane has.
    if missing != seen.dropped if not has_lanes else missing < 0 or (missing != 0 and not seen.dropped):
        complaints.append(f"{missing} lines are not there, and {seen.dropped} records were counted as dropped")
    if seen.tokens is not None:
        complaints += _compare_order(seen.tokens)
    return complaints


def _compare_order(tokens: Sequence[Seen]) -> list[str]:
    """What is left must stand in the order of its tokens, in each domain."""
    last: dict[Any, tuple[Any, ...]] = {}
    complaints = []
    for record in tokens:
        place = *record.token[1:], record.lane
        if record.ordered and last.setdefault((record.thread, record.domain), (-1,)) >= place:
            complaints.append(f"{record} comes behind {last[record.thread, record.domain]}")
        if record.ordered:
            last[record.thread, record.domain] = place
    return complaints
